"""Rows of quotas, pins, policies, tiers, ceilings, rates and tokenizers, and their generations."""
