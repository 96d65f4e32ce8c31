"""Recovery: how a data plane continues with the memory of the previous one.

A data plane that is killed leaves its memory to its supervisor, which holds duplicates of the descriptors
(`app.supervisor.fd_store`) and passes them to the next process (`fd_passing`). Without a supervisor, systemd does the
same (`service_manager`). A data plane that is stopped hands its memory to a keeper: `keeper` is a separate process that
imports only the wire format and `record`, holds the descriptors for `dataplane.keep_memory_s`, and gives them to the
next data plane of the state directory (`kept` is the data plane's side of this).

The next process proceeds in the same way in all cases. `adoption` checks the memory and adopts it, `named_segment`
does so for the segment that LMCache clients map by name, `dataplane.core.restore` rebuilds the core from the recovery
table and the id journal, and `snapshot_store` applies the saved snapshots of the management plane. Memory that cannot
be adopted is released, and the start is cold; `start` describes the start, using the `record` of what the cache held.
`ending` lists the ways in which a data plane ends.
"""
