"""Measure the look-up that the connector adds to vLLM's scheduler. The prompts have 16,384 tokens, and all their
chunks are cached."""

from itertools import count, cycle
from random import Random
from types import SimpleNamespace

from benchmarks.harness.result import Result, at_most
from benchmarks.harness.setting import Setting, store
from benchmarks.harness.timing import Latency
from dataplane.engines.vllm.messages import GroupLayout
from dataplane.engines.vllm.scheduler import SchedulerSide
from dataplane.engines.vllm.settings import ConnectorSettings
from dataplane.protocol.keys import chain
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.spaces import Space

BLOCK_BYTES = 64 << 10
TOKENS, PAGE_TOKENS = 16_384, 128
PROMPTS = 16
KNOWN_TARGET_US = 200.0


def run(setting: Setting) -> list[Result]:
    """Measure look-ups of known requests, whose keys were computed before, and of new requests."""
    effort = setting.effort
    random = Random(20)
    prompts = [[random.randrange(128_000) for _ in range(TOKENS)] for _ in range(PROMPTS)]
    numbers = count()

    def request(tokens: list[int]) -> SimpleNamespace:
        """The attributes of vLLM's requests that the connector reads."""
        return SimpleNamespace(
            request_id=str(next(numbers)), all_token_ids=tokens, num_tokens=TOKENS, num_prompt_tokens=TOKENS,
            cache_salt=None, lora_request=None, mm_features=None, prompt_embeds=None, pooling_params=None,
            kv_transfer_params=None,
        )  # fmt: skip

    with setting.client(BLOCK_BYTES) as client, setting.roundtrip() as message:
        for tokens in prompts:
            store(client, pack_keys(chain(tokens)), BLOCK_BYTES)
        settings = ConnectorSettings(socket=setting.socket_of(client), min_load_tokens=0)
        scheduler = SchedulerSide(
            settings, group="bench", engine="larder bench", block_tokens=PAGE_TOKENS, evict=lambda blocks: None
        )
        scheduler.workers_ready([[GroupLayout(Space("bench", block_bytes=BLOCK_BYTES), PAGE_TOKENS)]])
        tracked, turns = cycle([request(tokens) for tokens in prompts]), cycle(prompts)

        def new() -> None:
            new_request = request(next(turns))
            scheduler.matched_tokens(new_request, 0)
            scheduler.finished(new_request)

        for _ in prompts:
            if scheduler.matched_tokens(next(tracked), 0) != TOKENS - PAGE_TOKENS:
                raise RuntimeError("expected a hit on every chunk")
        repeated = Latency(
            lambda: scheduler.matched_tokens(next(tracked), 0), message.go, runs=effort.runs, samples=effort.samples
        )
        first = Latency(new, message.go, runs=effort.runs, samples=effort.samples)
        scheduler.close()
    return [
        at_most("connector_lookup_known_p50", repeated.us(50), "us", None, repeated.baseline_us(50)),
        at_most("connector_lookup_known_p99", repeated.us(99), "us", KNOWN_TARGET_US, repeated.baseline_us(99)),
        at_most("connector_lookup_new_p50", first.us(50), "us", None, first.baseline_us(50)),
        at_most("connector_lookup_new_p99", first.us(99), "us", None, first.baseline_us(99)),
    ]
