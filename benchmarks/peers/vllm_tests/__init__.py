"""vLLM's own tests of its message queue and object store, run on Larder's.

    make vllm-tests ARGS=/path/to/a/vllm/checkout

The tests are vLLM's and are not part of this repository: any checkout or unpacked source distribution of the installed
release has them. They run twice in vLLM's environment, on vLLM's classes and, with `LARDER_SHIM=1`, on Larder's.
`limits` lists the tests that read private attributes which only vLLM's classes have.
"""
