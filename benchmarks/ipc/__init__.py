"""Figures of the shared-memory library, beside vLLM's classes in the same run."""
