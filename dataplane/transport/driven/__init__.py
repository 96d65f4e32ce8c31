"""Engines of the engine socket that let the data plane copy between their devices and the pool.

    registrations   what an engine says of its cache, checked
    caches          one engine's cache, open: its memory, and copies on a stream
    copies          stores and loads: from a request to its end, on the loop

Nothing of a device is loaded before an engine registers a cache. Copies run on threads of their own; handles are opened
and closed on another one. The core decides who may store and load what, as for engines that copy by themselves.
"""
