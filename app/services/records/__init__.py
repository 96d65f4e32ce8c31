"""Records: quotas, pins, policies, ceilings, rates, tokenizers, and their progress on nodes."""
