"""Examples; `make` prints their targets. `vllm` runs on any machine; `agent` needs a running vLLM."""
