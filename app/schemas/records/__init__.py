"""Schemas of quotas, pins, policies, tiers, ceilings, rates, tokenizers, tenants and prefixes."""
