"""Larder's storage backend for SGLang's hierarchical cache (HiCache).

    python -m sglang.launch_server --model-path MODEL --page-size 64 --enable-hierarchical-cache
        --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
        '{"backend_name": "larder", "module_path": "dataplane.engines.sglang.backend",
          "class_name": "LarderBackend", "interface_v1": 1}'

SGLang imports `dataplane.engines.sglang.backend`; the other modules need no SGLang. `host_pages` reads SGLang's host
pool, `page_keys` maps SGLang's page hashes to keys, and `page_store` copies pages between the two.
"""
