"""A prompt through an unmodified vLLM on CPU with LMCache's connector. Arguments: port of the server, model folder, and
`stay` to end with the standard input instead of at once.

The model has random weights, the same in every process of one version of vLLM.
"""

import json
import os
import random
import sys

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
)

# LMCache imports numba before vLLM looks through every module for `__dict__`, and this object of llvmlite's answers any
# name with a function that is no dict. Nothing of vLLM or LMCache is changed.
import llvmlite.binding.ffi

llvmlite.binding.ffi.lib._fntab["__dict__"] = {}

from vllm import LLM, SamplingParams  # noqa: E402
from vllm.config import KVTransferConfig  # noqa: E402

PROMPT_TOKENS, VOCABULARY, NEW_TOKENS = 1200, 4096, 8
SALT = "acme"
SESSION = {"lmcache.larder.session": "talk"}

port, model, *stay = sys.argv[1:]
llm = LLM(
    model=model,
    load_format="dummy",
    skip_tokenizer_init=True,
    enforce_eager=True,
    max_model_len=2048,
    seed=0,
    kv_transfer_config=KVTransferConfig(
        kv_connector="LMCacheMPConnector",
        kv_role="kv_both",
        kv_connector_extra_config={
            "lmcache.mp.host": "tcp://127.0.0.1",
            "lmcache.mp.port": int(port),
            "lmcache.mp.mp_transfer_mode": "engine_driven",
        },
    ),
)
chance = random.Random(5)
prompt = [chance.randrange(3, VOCABULARY) for _ in range(PROMPT_TOKENS)]
(answer,) = llm.generate(
    [{"prompt_token_ids": prompt, "cache_salt": SALT}],
    SamplingParams(
        temperature=0,
        detokenize=False,
        ignore_eos=True,
        max_tokens=NEW_TOKENS,
        extra_args={"kv_transfer_params": SESSION},
    ),
    use_tqdm=False,
)
print(json.dumps({"cached": answer.num_cached_tokens, "tokens": list(answer.outputs[0].token_ids)}), flush=True)
if stay:
    sys.stdin.read()
del llm
