"""Memory of devices: what an accelerator can do for a cache, and copies between paged tensors and host memory.

    runtime   the interface: devices, memory and handles of it, pinned host memory, streams, events
    cuda      NVIDIA, on `cuda.bindings` and the driver's library; imported where a GPU is used, never before
    twin      the same on host memory: handles open across real processes, streams keep their order, failures can be
              provoked. For tests and for machines without a GPU; it is given to whoever uses it, and never found
    find      the runtime of this machine, or the sentence that says why there is none
    paged     layouts of paged tensors, as runs of bytes
    copying   gather and scatter of chunks on a side stream
    kernels   the Triton kernel that copies pages; needs Triton and registered host memory
    pinning   host memory registered with a runtime in windows, and a staging ring where that is refused
    report    what `larder doctor` asks of a machine with GPUs

Knows the protocol alone. Not here: who may copy what, and when; no socket, no rule of the cache.
"""
