"""The encoding of the LMCache protocol: operation numbers by release, messages, tokens, CUDA IPC handles."""
