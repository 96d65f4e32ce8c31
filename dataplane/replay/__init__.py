"""Replay a trace of requests through the client, and check every byte that comes back.

`python -m dataplane.replay TRACE` (also `larder replay TRACE`) drives real engine processes with a trace in the
Mooncake format: each looks up a request's blocks, copies out what is there, stores what is missing. The outcome is the
hit ratio that the data plane really has on that trace, with proof that no block was torn, mixed up or lost from the
books.

    command    the command line                      trace    the file: one request a line
    run        all engines, progress, the sum        tenants  which request is whose
    worker     one engine process                    chains   keys of a request's blocks
    engine     look up, read, store                  content  bytes that only their key can give
    plane      a data plane, ours or a running one   tally    what is counted
    control    asking it                             report   the table and the JSON object
    accounting do its books add up                   load, sessions   an endless load of three tenants, to look at

It is a client like any other: it imports `dataplane.client` and `dataplane.protocol`, starts the data plane as a
process, and nothing of the data plane imports it.
"""
