"""Registered workers: what they are, the device memory that they describe, and their open stores and reads.

`registry` has the workers and saves what a restart needs of them, `instances` attaches and detaches their engines, and
`transfers` has their open stores and reads. The other modules describe and open the memory of workers that let this
node copy.
"""
