"""Replay a trace of requests through the client, and check every byte that comes back.

`python -m dataplane.replay TRACE` (also `larder replay TRACE`) drives real engine processes with a trace in the
Mooncake format: each looks up a request's blocks, copies out what is there, stores what is missing. The outcome is the
hit ratio that the data plane really has on that trace, with proof that no block was torn, mixed up or lost from the
books.

    trace     the file: one request a line          engine    one engine process: look up, read, store, count
    tenants   which request is whose                run       data plane, engine processes, progress, the end
    chains    keys of a request's blocks            plane     a data plane of our own, started and stopped
    content   bytes that only their key can give    accounting  the books, asked over the control socket
    tally     what is counted                       report    the table and the JSON object
    load, sessions   an endless made-up load of three tenants, for demonstrations

It is a client like any other: it imports `dataplane.client` and `dataplane.protocol`, starts the data plane as a
process, and nothing of the data plane imports it.
"""
