"""Protocols between engines, the data plane and the management plane, and the layout of their shared memory.

This is the only package of the data plane that other packages may import. It holds message types, error codes, the
codec, key derivation, the shared-memory layout and the settings that both planes read. It opens no socket, reads no
clock, starts no thread and logs nothing.
"""
