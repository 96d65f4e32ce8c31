"""Recovery: how a data plane continues with the memory of the previous one.

A process of its own has duplicates of the file descriptors of all memory from the first byte on, and outlives the
data plane, its supervisor and the management plane. `dataplane.holding` has that process, the `holder`, and the data
plane's `connection` to it, which starts one when there is none. However a data plane ends, by a stop, a restart or a
kill, the next one of the state directory takes the memory from the holder.

The next process proceeds in the same way in all cases. `adoption` checks the memory and adopts it, `named_segment`
does so for the segment that LMCache clients map by name, `dataplane.core.restore` rebuilds the core from the recovery
table and the id journal, and `snapshot_store` applies the saved snapshots of the management plane. Memory that cannot
be adopted is released, and the start is cold; `start` describes the start, using the `record` of what the cache held.
`retained_cache` ends a data plane in one of several ways. `state` is the state directory, with the saved snapshots.

`supervision` is the connection to the supervisor that started a data plane, and `service_manager` that to systemd.
"""
