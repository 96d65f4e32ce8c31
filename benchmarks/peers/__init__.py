"""Larder beside the servers that it stands in for, in one run on one machine.

`make peers` builds LMCache and vLLM on CPU in environments of their own, `make bench-peers` measures. Nothing of Larder
imports what is installed there: peers are processes of their own, and tests that drive their clients (tests/peers) run
scripts with their interpreter.
"""
