"""What may be said between engines, the data plane and the management plane, and where it lies in shared memory.

The only package of the data plane that others may import. It holds message types, error codes, the codec, key
derivation, the shared-memory layout and the settings both planes read. It opens no socket, reads no clock, starts no
thread and logs nothing.
"""
