"""Examples that run on any machine; `make` prints their targets."""
