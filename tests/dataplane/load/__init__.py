"""Real engines, honest ones and misfits, on one data plane: torn reads, use after eviction, leaks, drift."""
