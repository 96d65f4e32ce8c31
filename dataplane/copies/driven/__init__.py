"""Copies that the data plane makes for engines of the engine socket, between their devices and the pool.

    registrations   checks an engine's description of its cache
    caches          one engine's open cache: its memory, and copies on a stream
    host_pools      one engine's pages in host memory, in files of `host_files`
    copies          stores and loads: from a request to its end, on the loop

No device is used before an engine registers a cache. Copies run on separate threads; handles are opened and closed on
another one. The core decides which stores and loads are allowed, as for engines that copy by themselves.
"""
