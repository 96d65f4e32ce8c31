"""Registered workers: what they are, the device memory that they describe, and their open stores and reads.

`instances` holds the workers, `registrations` what a restart needs of them, `transfers` their open stores and reads.
The other modules describe and open the memory of workers that let this node copy.
"""
