"""Settings, keys and spaces of SGLang's pages."""

from __future__ import annotations

import ctypes
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dataplane.client.copies import PIECE_BYTES, copy_pieces_summed
from dataplane.engines.sglang.host_pages import HostPages, PoolRefused
from dataplane.engines.sglang.page_keys import PageKeys
from dataplane.engines.sglang.settings import BackendSettings, read_settings
from dataplane.protocol.checksums import checksum
from dataplane.protocol.spaces import check_space
from tests.engines.sglang.fakes import MHATokenToKVPoolHost, MLATokenToKVPoolHost, StorageConfig

SETTINGS = BackendSettings(socket="/s")


def test_settings_of_sglang_are_ignored_and_defaults_apply() -> None:
    extra = {"backend_name": "larder", "interface_v1": 1, "larder.tenant": "acme"}
    assert read_settings(extra, {"LARDER_ENGINE_SOCKET": "/s"}) == BackendSettings(socket="/s", tenant="acme")


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"larder.chunk": 1}, r"larder\.chunk: unknown; expected one of larder\.socket, larder\.tenant, "),
        ({"larder.tenant": "a/b"}, r"larder\.tenant: expected no control characters and none of '@', '/'"),
        ({"larder.tenant": 3}, r"larder\.tenant: expected `str`, got `int`"),
        ({"larder.verify": "yes"}, r"larder\.verify: expected off, sample or always, got 'yes'"),
        ({"larder.timeout_s": 0}, r"larder\.timeout_s: expected `float` >= 0\.01"),
        ({"larder.copy_threads": 0}, r"larder\.copy_threads: expected `int` >= 1"),
        ({"interface_v1": 0}, r"interface_v1: expected 1, got 0"),
        ({"interface_v1": None}, r"interface_v1: expected 1, got None"),
    ],
)
def test_wrong_settings_are_named(extra: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=r"^hicache_storage_backend_extra_config\." + message):
        read_settings({"interface_v1": 1, **extra}, {})


@pytest.mark.parametrize(
    ("config", "message"),
    [({"dcp_size": 2}, "dcp_size: expected 1"), ({"model_name": None}, r"larder\.model: expected a name")],
)
def test_wrong_configurations_end_the_engine_when_it_starts(
    backend_class: Any, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        backend_class(StorageConfig({"interface_v1": 1}, **config), {})


def test_an_older_sglang_gets_the_release_that_is_needed(backend_class: Any) -> None:
    config = vars(StorageConfig({"interface_v1": 1}))
    del config["dcp_size"]
    with pytest.raises(ValueError, match=r"^expected SGLang 0\.5\.23 or later$"):
        backend_class(SimpleNamespace(**config), {})


def test_the_key_of_a_page_matches_its_documentation() -> None:
    tag, counts = b"larder.sglang.1", (b"\x04\0\0\0", b"\0\0\0\0", b"\x40\0\0\0")
    expected = sha256(tag + counts[0] + b"acme" + counts[1] + counts[2] + b"a" * 64).digest()
    assert PageKeys("acme").of(["a" * 64]) == expected
    assert expected.hex() == "065eac69e088c94a95e685ebf17df9141a08314999a4539026744b4a0c8b382d"


def test_keys_differ_by_tenant_namespace_and_name() -> None:
    keys = [
        PageKeys(tenant, namespace).of([name])
        for tenant in ("", "a", "ab")
        for namespace in (b"", b"b", b"bc")
        for name in ("", "c", "bc")
    ]
    assert len({*keys}) == 27
    assert PageKeys("a").of(["x", "y"]) == PageKeys("a").of(["x"]) + PageKeys("a").of(["y"])


def space(pool: Any = None, revision: tuple[str, ...] = (), **config: Any) -> Any:
    pages = HostPages(MHATokenToKVPoolHost() if pool is None else pool)
    return check_space(pages.space(StorageConfig({}, **config), SETTINGS, revision))


def test_pages_that_are_not_interchangeable_have_other_spaces() -> None:
    wider = MHATokenToKVPoolHost()
    wider.head_dim = 8  # type: ignore[attr-defined]
    floats = MHATokenToKVPoolHost()
    floats.dtype = "torch.float16"
    found = [
        space(),
        space(MHATokenToKVPoolHost("page_first_direct")),
        space(MHATokenToKVPoolHost(page_tokens=32)),
        space(MLATokenToKVPoolHost()),
        space(wider),
        space(floats),
        space(model_name="other"),
        space(revision=("", "fp8")),
        space(revision=("fp8", "")),
        *(space(tp_size=4, tp_rank=rank) for rank in range(4)),
        *(space(pp_size=2, pp_rank=rank) for rank in range(2)),
        *(space(attn_cp_size=2, attn_cp_rank=rank) for rank in range(2)),
        space(tp_size=2, tp_rank=1, attn_cp_size=2, attn_cp_rank=1),
    ]
    identities = {each.identity() for each in found}
    assert len(identities) == len(found)


def test_two_kinds_of_ranks_have_other_spaces() -> None:
    tensor = space(tp_size=2, tp_rank=1)
    context = space(attn_cp_size=2, attn_cp_rank=1)
    assert tensor.identity() != context.identity()


def test_ranks_with_latent_attention_have_one_space() -> None:
    pool = MLATokenToKVPoolHost()
    found = {space(pool, tp_size=size, tp_rank=rank, is_mla_model=True) for size, rank in [(1, 0), (2, 0), (2, 1)]}
    assert len(found) == 1
    assert found.pop().block_bytes == len(pool.page(0))


def test_a_setting_names_the_model() -> None:
    pages = HostPages(MHATokenToKVPoolHost())
    named = pages.space(StorageConfig({}), BackendSettings(model="n", revision="2"), ["main"])
    assert (named.model, named.revision) == ("n", "2/main")
    with pytest.raises(PoolRefused, match=r"larder\.model"):
        pages.space(StorageConfig({}, model_name=""), SETTINGS)


@pytest.mark.parametrize(
    "sizes", [[1], [7, 9], [PIECE_BYTES], [PIECE_BYTES - 1, 2], [3 * PIECE_BYTES + 5, 1, PIECE_BYTES], [64] * 9000]
)
def test_pieces_are_copied_one_after_another_and_summed(sizes: list[int]) -> None:
    pieces = [np.random.default_rng(at).integers(0, 256, size, np.uint8) for at, size in enumerate(sizes)]
    target = np.zeros(sum(sizes) + 1, np.uint8)
    found = copy_pieces_summed(target[:-1], [each.ctypes.data for each in pieces], sizes)
    whole = b"".join(each.tobytes() for each in pieces)
    assert ctypes.string_at(target.ctypes.data, len(target)) == whole + b"\0"
    assert found == checksum(whole)
