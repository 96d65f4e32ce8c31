"""Keys of requests: they equal those of `protocol.keys`, and differ wherever the KV bytes may differ."""

from types import SimpleNamespace
from typing import Any

import torch

from dataplane.engines.vllm.request_keys import RequestKeys
from dataplane.protocol.keys import chain
from tests.engines.vllm.fakes import CHUNK_TOKENS, Request, image

TOKENS = list(range(300))


def keys(request: Any, namespace: str = "") -> list[bytes]:
    return RequestKeys(request, CHUNK_TOKENS, namespace).extend(request, request.num_tokens)


def test_keys_are_those_that_pins_and_other_engines_use() -> None:
    request = Request("r", TOKENS, "acme")
    assert keys(request) == chain(TOKENS, "acme", chunk_tokens=CHUNK_TOKENS)


def test_keys_grow_with_the_request() -> None:
    request = Request("r", TOKENS[:100])
    known = RequestKeys(request, CHUNK_TOKENS)
    assert len(known.extend(request, 50)) == 0
    assert len(known.extend(request, 100)) == 1
    request.all_token_ids += TOKENS[100:]
    assert known.extend(request, 300) == chain(TOKENS, chunk_tokens=CHUNK_TOKENS)


def test_adapters_differ_by_name_and_path() -> None:
    adapters = [None, ("a", "/x"), ("a", "/y"), ("b", "/x"), ("a/x", "")]
    found = {
        keys(Request("r", TOKENS, lora_request=a and SimpleNamespace(lora_name=a[0], lora_path=a[1])))[0]
        for a in adapters
    }
    assert len(found) == len(adapters)
    assert len({keys(Request("r", TOKENS), name)[0] for name in ("", "one", "other")}) == 3


def test_an_image_changes_its_chunk_and_all_later_ones() -> None:
    plain = keys(Request("r", TOKENS))
    first = keys(Request("r", TOKENS, mm_features=[image("cat", 70, 30)]))
    other = keys(Request("r", TOKENS, mm_features=[image("dog", 70, 30)]))
    moved = keys(Request("r", TOKENS, mm_features=[image("cat", 71, 30)]))
    assert plain[0] == first[0] == other[0] == moved[0]
    assert len({plain[1], first[1], other[1], moved[1]}) == 4
    assert len({plain[3], first[3], other[3], moved[3]}) == 4, "every later key names its whole prefix"


def test_an_image_of_many_chunks_marks_each_of_them() -> None:
    """A prefix that ends within an image differs from that of any other image."""
    long = keys(Request("r", TOKENS, mm_features=[image("film", 10, 200)]))
    both = keys(Request("r", TOKENS, mm_features=[image("film", 10, 50), image("more", 70, 140)]))
    assert long[0] == both[0]
    assert long[1] != both[1]


def test_embeddings_count_by_their_values() -> None:
    one = torch.arange(300 * 4, dtype=torch.float32).reshape(300, 4).to(torch.bfloat16)
    other = one.clone()
    other[100] += 1
    zeros = [0] * 300
    first, second = (keys(Request("r", zeros, prompt_embeds=each)) for each in (one, other))
    assert first[0] == second[0] != keys(Request("r", zeros))[0]
    assert first[1] != second[1]
