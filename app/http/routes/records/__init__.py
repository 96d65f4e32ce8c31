"""Routes for records: quotas, pins, policies, tiers, ceilings, rates, tokenizers, and for tenants and prefixes."""
