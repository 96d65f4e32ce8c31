"""Rows of quotas, pins, policies, ceilings, rates and tokenizers, and their generations."""
