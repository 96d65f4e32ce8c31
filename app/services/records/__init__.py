"""Records: quotas, pins, policies, tiers, ceilings, rates, tokenizers, and their progress on nodes.

`records` reads and writes the records of every type. Modules such as `quotas` have the rules of one type: what depends
on other records, such as ceilings and floors, and what nodes report. `quota_intent` and its like declare a type and
validate the body of a PUT; types that nodes do not receive do so in one module.
"""
