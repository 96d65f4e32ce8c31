"""Device memory: what the cache needs from an accelerator, and copies between paged tensors and host memory.

    runtime   the interface: devices, memory and its handles, pinned host memory, streams, events
    cuda      NVIDIA GPUs, through `cuda.bindings` and the driver's library; imported only where a GPU is used
    find      the runtime of this machine, or the reason why there is none
    paged     layouts of paged tensors, as runs of bytes
    copying   gather and scatter of chunks on a side stream
    kernels   the kernel that copies pages; needs registered host memory that kernels can access
    pinning   host memory registered with a runtime in windows, and a staging buffer for when that is refused
    report    the checks that `larder doctor` runs on a machine with GPUs

The package imports only the protocol and `dataplane.base`. Not in scope: which copies are allowed and when, sockets,
and the rules of the cache.
"""
