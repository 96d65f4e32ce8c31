"""Records: quotas, pins, policies, tiers, ceilings, rates, tokenizers, and their progress on nodes.

A service such as `quotas` reads and writes the records of one type. For the types that nodes receive, `quota_intent`,
`pin_intent` and `policy_intent` validate the body of a PUT; the services of the other types do so themselves
(`_check`). `write` of a service then checks what depends on other records, such as owners, ceilings and floors.
"""
