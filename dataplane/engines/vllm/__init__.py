"""vLLM's connector for Larder.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "LarderConnector", "kv_role": "kv_both"}'

`registration` lets vLLM find the connector by its name. vLLM imports `dataplane.engines.vllm.connector`; the other
modules need no vLLM. `scheduler` plans loads
and saves from shared memory, and never waits; `worker` copies on its own threads; `messages` defines the messages
between the two.
"""
