"""Publisher of KV events for routers that place requests by cached prefix (llm-d, Dynamo, AIBrix).

The events have the frames, types and fields of vLLM's. The pool appends changes to a record (`core.pool.changes`), and
this package encodes and sends them later, in batches. Only the composition root imports it, and it runs only if
`kv_events_url` is set.

`messages` is the encoding, `stream` the sockets of one rank with the replay buffer, `publisher` decides which events
are published and when, `token_ids` remembers the tokens of blocks, `build` creates the publisher from the settings.
"""
