"""vLLM with two tensor-parallel workers on Larder's message queue, in place of its own."""

from __future__ import annotations

import re

from dataplane.engines.vllm.shim import VARIABLE
from dataplane.ipc import memory
from tests.engines.vllm.engine import MakeEngine, prompt

PROMPTS = [prompt(tokens, seed) for tokens, seed in ((50, 1), (400, 2), (700, 3))]


def test_tokens_are_identical_on_larders_queue(make_engine: MakeEngine, plugins: dict[str, str]) -> None:
    answers = []
    for use in ("0", "1"):
        engine = make_engine(None, environ={**plugins, VARIABLE: use}, options={"tensor_parallel_size": 2}).ready()
        queues = {each.identity for each in memory.find("queue") if each.pid == engine.process.pid}
        assert bool(queues) == (use == "1")
        answers.append([engine.generate(tokens, new=24)["tokens"] for tokens in PROMPTS])
        engine.close()
        log = engine.log.read_text(errors="replace")
        assert bool(re.search("uses Larder's message queue", log)) == (use == "1")
        assert not queues & {each.identity for each in memory.find("queue")}
    assert answers[0] == answers[1]
    assert all(len(tokens) == 24 for tokens in answers[1])
