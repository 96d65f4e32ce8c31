"""Commands for records: quotas, pins, policies, tiers, ceilings, tokenizers, and for the tenants that have them."""
