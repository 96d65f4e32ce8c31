"""Replay a trace of requests through the client, and check every byte that is read.

`python -m dataplane.replay TRACE` (also `larder replay TRACE`) drives real engine processes with a trace in the
Mooncake format. Each engine looks up the blocks of a request, copies out the cached ones, and stores the missing ones.
The result is the data plane's actual hit ratio on that trace, with proof that no block was torn, mixed up or lost from
the accounting.

    command    the command line                      trace    the file: one request per line
    run        all engines, progress, the totals     tenants  assignment of requests to tenants
    worker     one engine process                    chains   keys of a request's blocks
    processes  start and end engine processes
    engine     look up, read, store                  content  bytes that are unique to their key
    plane      a data plane: own or already running  tally    counts
    control    requests to the control socket        report   the table and the JSON object
    accounting check of the data plane's accounting  load, sessions   an endless demo load of three tenants

The replay is an ordinary client: it imports `dataplane.client` and `dataplane.protocol`, and starts the data plane as a
separate process. No module of the data plane imports it.
"""
