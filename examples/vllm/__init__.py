"""`make example-vllm`: two vLLM servers on CPU share the KV cache of a prompt's prefix through Larder.

`model` writes a tiny model; `processes` starts and stops Larder and the servers; `__main__` sends the requests.
"""
