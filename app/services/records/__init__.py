"""Records: quotas, pins, policies, tiers, ceilings, rates, tokenizers, and their progress on nodes.

`records` reads and writes the records of every type. Modules such as `quotas` declare one type and have its rules: what
a valid PUT is, what depends on other records, such as ceilings and floors, and what nodes report.
"""
