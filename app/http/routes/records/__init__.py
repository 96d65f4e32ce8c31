"""Routes for records: quotas, pins, policies, ceilings, rates, tokenizers, and for tenants and prefixes."""
