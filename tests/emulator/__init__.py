"""Emulated device on the CPU with the rules of CUDA: streams, events, memory, and the errors for their misuse."""
