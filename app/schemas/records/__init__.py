"""Schemas of quotas, pins, policies, ceilings, rates, tokenizers, tenants and prefixes."""
