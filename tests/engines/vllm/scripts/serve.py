"""An in-process vLLM on CPU, driven line by line: a JSON request on the standard input, a JSON answer on the standard
output. The argument is a JSON object with `model`, `connector` (extra config, or null for none), `transfer` (arguments
of `transfer_config`) and `options` of `LLM`.

    {"do": "generate", "prompts": [{"tokens": [...], "salt": "", "new": 8, "params": {...}, "lora": "...",
                                    "logprobs": 1}]}   `lora`: a path, or the arguments of a LoRARequest
    {"do": "add_lora", "lora": {...}}   load an adapter, as `/v1/load_lora_adapter` does
    {"do": "counters"}   the connector's metrics
    {"do": "preemptions"}   how many requests were preempted
    {"do": "abort", "tokens": [...], "salt": "", "steps": 1}   add a request, step, abort it, run until idle
    {"do": "hint", "tokens": [...], "action": "larder.pin", "payload": {...}}   run a request with `kv_hints`
    {"do": "forget", "all": false}   reset the local prefix cache; with `all`, also the connector's
    {"do": "reload", "path": "..."}   load other weights in place; without a path, again from where they came
"""

import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_STREAM="ext://sys.stderr",
)
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm.lora.request import LoRARequest


def generate(request):
    prompts = [{"prompt_token_ids": each["tokens"], **({"cache_salt": each["salt"]} if each.get("salt") else {})}
               for each in request["prompts"]]  # fmt: skip
    params = [
        SamplingParams(
            temperature=0,
            detokenize=False,
            ignore_eos=True,
            max_tokens=each.get("new", 8),
            extra_args={"kv_transfer_params": each["params"]} if each.get("params") else None,
            prompt_logprobs=each.get("logprobs"),
        )
        for each in request["prompts"]
    ]
    loras = [adapter(each["lora"]) if each.get("lora") else None for each in request["prompts"]]
    began = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False, lora_request=loras if any(loras) else None)
    return {
        "seconds": time.perf_counter() - began,
        "outputs": [
            {
                "cached": each.num_cached_tokens,
                "tokens": list(each.outputs[0].token_ids),
                "finish": each.outputs[0].finish_reason,
                "transfer_params": each.kv_transfer_params,
            }
            for each in outputs
        ],
    }


def adapter(given: Any) -> LoRARequest:
    return LoRARequest(*("adapter", 1, given) if isinstance(given, str) else given)


def add_lora(request):
    return {"added": engine.add_lora(adapter(request["lora"]))}


def counters(request):
    idle()
    found = {each.name: getattr(each, "value", 0) for each in llm.get_metrics()}
    return {name.removeprefix("vllm:larder_"): value for name, value in found.items() if "larder" in name}


def sources(request):
    """Return cached prompt tokens by vLLM's name of where they were."""
    idle()
    found = [each for each in llm.get_metrics() if each.name == "vllm:prompt_tokens_cached_by_source"]
    return {each.labels["source"]: each.value for each in found}


def preemptions(request):
    idle()
    return {"count": sum(each.value for each in llm.get_metrics() if each.name == "vllm:num_preemptions")}


def abort(request):
    prompt = {"prompt_token_ids": request["tokens"], "cache_salt": request.get("salt") or None}
    engine.add_request("dead", prompt, SamplingParams(temperature=0, detokenize=False, max_tokens=64))
    for _ in range(request["steps"]):
        engine.step()
    engine.abort_request(["dead"])
    return {"idle": idle()}


def hint(request):
    from vllm.v1.kv_hints import KvHintAction, KvHintsEnvelope  # from 0.31 on

    action = KvHintAction("action", request["action"], "1", request["payload"])
    engine.add_request(
        "hinted",
        {"prompt_token_ids": request["tokens"]},
        SamplingParams(temperature=0, detokenize=False, max_tokens=1),
        kv_hints=KvHintsEnvelope("1", "message", [action]),
    )
    return {"idle": idle()}


def idle() -> bool:
    """Step, as a server does, until saves have ended and blocks are free. Return False after 20 seconds."""
    scheduler = engine.engine_core.engine_core.scheduler
    deadline = time.monotonic() + 90
    while scheduler.has_requests() and time.monotonic() < deadline:
        engine.step()
    return not scheduler.has_requests()


def forget(request):
    idle()
    return {"done": llm.reset_prefix_cache(reset_connector=bool(request.get("all")))}


def reload(request):
    idle()
    llm.collective_rpc("reload_weights", kwargs={"weights_path": request["path"]} if request.get("path") else {})
    return {"done": True}


def transfer_config(larder: dict[str, Any], role: str, children: list[dict[str, Any] | None] | None = None) -> Any:
    """Return the configuration of Larder's connector, or of a MultiConnector with `children`, of which None stands for
    Larder's."""
    own: dict[str, Any] = {"kv_connector": "LarderConnector", "kv_role": role, "kv_connector_extra_config": larder}
    if children is None:
        return KVTransferConfig(kv_connector_module_path="dataplane.engines.vllm.connector", **own)
    return KVTransferConfig(
        kv_connector="MultiConnector",
        kv_role=role,
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={
            "connectors": [{"kv_role": role, **each} if each is not None else own for each in children]
        },
    )


if __name__ == "__main__":  # workers import this module
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # printed text must not mix with answers

    given = json.loads(sys.argv[1])
    connector = given["connector"]
    options = {"role": "kv_both", **given.get("transfer", {})}
    llm = LLM(
        model=given["model"],
        skip_tokenizer_init=True,
        enforce_eager=True,
        seed=0,
        disable_log_stats=False,
        kv_transfer_config=None if connector is None else transfer_config(connector, **options),
        **{"load_format": "dummy", "max_model_len": 2048, **given.get("options", {})},
    )
    engine = llm.llm_engine
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(globals()[request["do"]](request)), file=answers)
