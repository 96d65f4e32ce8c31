"""Shared memory between processes of one user: a message queue, an object store, and the code that both use.

The package can be used without the rest of Larder: it imports numpy, msgspec and xxhash, and pyzmq only for readers on
other machines. It has no notion of blocks, engines or nodes. It needs Linux on x86-64: the protocols rely on that
processor's memory order.
"""
