"""Commands for records: quotas, pins, policies, ceilings, tokenizers, and for the tenants that have them."""
