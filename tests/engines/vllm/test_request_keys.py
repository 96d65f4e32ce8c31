"""Keys of requests: they equal those of `protocol.keys`, and differ wherever the KV bytes may differ."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dataplane.engines.vllm.adapters import AdapterFiles, Adapters, digest_of, files_of
from dataplane.engines.vllm.request_keys import RequestKeys, Unkeyed
from dataplane.protocol.keys import chain
from tests.dataplane.plane import wait_for
from tests.engines.vllm.fakes import CHUNK_TOKENS, Request, image
from tests.engines.vllm.models import lora, write_adapter

TOKENS = list(range(300))
ZEROS = [0] * 300
EMBEDS = torch.arange(300 * 4, dtype=torch.float32).reshape(300, 4).to(torch.bfloat16)
OTHER = EMBEDS.clone()
OTHER[10] += 1
MASK = [at % 2 == 0 for at in range(300)]
DIGEST = sha256(b"contents").hexdigest()


def keys(request: Any, **options: Any) -> list[bytes]:
    return RequestKeys(request, CHUNK_TOKENS, **options).extend(request, request.num_tokens)


def identity(adapters: Adapters, adapter: Any, own_blocks: bool = False, own_media: bool = False) -> str:
    """Return the identity of an adapter after its files are read. Raise Unkeyed."""
    found: list[str] = []

    def known() -> bool:
        name = adapters.identity(adapter, own_blocks=own_blocks, own_media=own_media)
        found.extend([] if name is None else [name])
        return bool(found)

    wait_for(known, "the files are read")
    return found[0]


def new(adapter: Any) -> str:
    """Return the identity in an engine that has just started."""
    adapters = Adapters()
    try:
        return identity(adapters, adapter)
    finally:
        adapters.close()


def test_keys_are_those_that_pins_and_other_engines_use() -> None:
    request = Request("r", TOKENS, "acme")
    assert keys(request) == chain(TOKENS, "acme", chunk_tokens=CHUNK_TOKENS)
    assert keys(request, adapter="x") == chain(TOKENS, "acme", adapter_id="x", chunk_tokens=CHUNK_TOKENS)


def test_keys_grow_with_the_request() -> None:
    request = Request("r", TOKENS[:100])
    known = RequestKeys(request, CHUNK_TOKENS)
    assert len(known.extend(request, 50)) == 0
    assert len(known.extend(request, 100)) == 1
    request.all_token_ids += TOKENS[100:]
    assert known.extend(request, 300) == chain(TOKENS, chunk_tokens=CHUNK_TOKENS)


FIRST = Request("r", TOKENS, "acme", mm_features=[image("cat", 20, 10)])
EMBEDDED = Request("r", ZEROS, prompt_embeds=EMBEDS, prompt_is_token_ids=MASK)


@pytest.mark.parametrize(
    ("base", "change", "options"),
    [
        pytest.param(FIRST, {"cache_salt": "rival"}, {}, id="salt"),
        pytest.param(FIRST, {"all_token_ids": [9, *TOKENS[1:]]}, {}, id="token"),
        pytest.param(FIRST, {}, {"adapter": "x"}, id="adapter"),
        pytest.param(FIRST, {}, {"namespace": "x"}, id="reset"),
        pytest.param(FIRST, {}, {"adapter": "x", "namespace": "x"}, id="adapter and reset"),
        pytest.param(FIRST, {"mm_features": []}, {}, id="no image"),
        pytest.param(FIRST, {"mm_features": [image("dog", 20, 10)]}, {}, id="image"),
        pytest.param(FIRST, {"mm_features": [image("cat", 21, 10)]}, {}, id="place of the image"),
        pytest.param(FIRST, {"mm_features": [image("cat", 20, 10), image("cat", 40, 9)]}, {}, id="two images"),
        pytest.param(EMBEDDED, {"prompt_embeds": None}, {}, id="no embeddings"),
        pytest.param(EMBEDDED, {"prompt_embeds": OTHER}, {}, id="embeddings"),
        pytest.param(EMBEDDED, {"prompt_embeds": EMBEDS.view(torch.float16)}, {}, id="type of the embeddings"),
        pytest.param(EMBEDDED, {"prompt_embeds": EMBEDS.reshape(600, 2)[:300]}, {}, id="size of the embeddings"),
        pytest.param(EMBEDDED, {"prompt_is_token_ids": None}, {}, id="no mask of tokens"),
        pytest.param(EMBEDDED, {"prompt_is_token_ids": MASK[::-1]}, {}, id="mask of tokens"),
    ],
)
def test_each_thing_that_changes_kv_changes_all_keys(base: Request, change: Any, options: Any) -> None:
    changed = keys(Request(**{**vars(base), **change}), **options)
    assert not set(changed) & set(keys(base))


@pytest.mark.parametrize(
    "change",
    [
        {"request_id": "other"},
        {"kv_transfer_params": {"larder.pin": 60}},
        {"skip_reading_prefix_cache": True},
        {"pooling_params": SimpleNamespace(extra_kwargs=None)},
        {"mm_features": [image("cat", 20, 10, mm_hash="x", modality="video")]},
        {
            "lora_request": lora("/x"),
            "mm_features": [image("cat", 20, 10, identifier=f"a:{image('cat', 0, 0).identifier}")],
        },
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_changes_no_kv_changes_no_key(change: Any) -> None:
    assert keys(Request(**{**vars(FIRST), **change})) == keys(FIRST)


def test_an_image_changes_its_chunk_and_all_later_ones() -> None:
    plain = keys(Request("r", TOKENS))
    first = keys(Request("r", TOKENS, mm_features=[image("cat", 70, 30)]))
    other = keys(Request("r", TOKENS, mm_features=[image("dog", 70, 30)]))
    assert plain[0] == first[0] == other[0]
    assert all(len({*each}) == 3 for each in zip(plain[1:], first[1:], other[1:], strict=True))


def test_an_image_of_many_chunks_marks_each_of_them() -> None:
    """A prefix that ends within an image differs from that of any other image."""
    long = keys(Request("r", TOKENS, mm_features=[image("film", 10, 200)]))
    both = keys(Request("r", TOKENS, mm_features=[image("film", 10, 50), image("more", 70, 140)]))
    assert long[0] == both[0]
    assert long[1] != both[1]


@pytest.mark.parametrize("modality", ["image", "audio", "video"])
@pytest.mark.parametrize(
    ("identifier", "hashed", "keyed"),
    [
        (DIGEST, True, True),
        (2 * DIGEST, True, True),
        ("renderer0-mm-1-image-0", False, False),
        ("renderer0-mm-1-image-0", True, False),
        (DIGEST, False, False),  # with options of the processor, vLLM makes a digest of the number
        ("cat", True, False),
        ("", True, False),
        (DIGEST[:32], True, False),
        (f"{DIGEST}\n", True, False),
        (f"b:{DIGEST}", True, False),
    ],
)
def test_only_digests_of_contents_identify_media(modality: str, identifier: str, hashed: bool, keyed: bool) -> None:
    items = [image("dog", 5, 5), image("cat", 20, 10, identifier=identifier, modality=modality)]
    request = Request("r", TOKENS, mm_features=items)
    if keyed:
        assert len(keys(request, hashes_media=hashed)) == 4
        return
    with pytest.raises(Unkeyed) as caught:
        keys(request, hashes_media=hashed)
    assert caught.value.reason == "media"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"cache_salt": "a/b"}, "salt"),
        ({"pooling_params": SimpleNamespace(extra_kwargs={"compressed_token_type_ids": 4})}, "pooling"),
    ],
)
def test_requests_without_keys_say_why(fields: Any, reason: str) -> None:
    with pytest.raises(Unkeyed) as caught:
        keys(Request("r", TOKENS, **fields))
    assert caught.value.reason == reason


def rewrite(name: str, content: bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        pytest.param(lambda folder: write_adapter(folder, 2), False, id="trained again"),
        pytest.param(lambda folder: flip(folder / "adapter_model.safetensors"), False, id="one bit in place"),
        pytest.param(rewrite("adapter_config.json", b'{"r": 8, "lora_alpha": 32}'), False, id="configuration"),
        pytest.param(
            lambda folder: (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin"),
            False,
            id="format",
        ),
        pytest.param(rewrite("README.md", b"x"), True, id="a file that vLLM does not read"),
        pytest.param(rewrite("adapter_model.bin", b"x"), True, id="a file that vLLM reads only without another"),
        pytest.param(lambda folder: write_adapter(folder, 1), True, id="saved again"),
        pytest.param(lambda folder: os.utime(folder / "adapter_config.json", (1, 1)), True, id="time"),
    ],
)
def test_adapters_are_identified_by_contents(tmp_path: Path, change: Callable[[Path], Any], same: bool) -> None:
    one, other = write_adapter(tmp_path / "one", 1), write_adapter(tmp_path / "other", 1)
    known = new(lora(one))
    assert new(lora(other, "b", 7, base_model_name="m")) == known, "neither name nor path counts"
    change(other)
    assert (new(lora(other)) == known) == same
    assert new(lora(one, is_3d_lora_weight=True)) != known


def flip(path: Path) -> None:
    """Change one bit of a file in place, and leave its size and time of change as they are."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


class Engine:
    """Adapters of one engine, and a folder with one adapter."""

    def __init__(self, folder: Path) -> None:
        self.adapters = Adapters()
        self.folder = write_adapter(folder, 1)

    def train(self, seed: int) -> str:
        """Overwrite the adapter. Return the identity of the new contents."""
        return new(lora(write_adapter(self.folder, seed)))

    def add(self, number: int = 1, change: Callable[[], Any] = lambda: None, **fields: Any) -> None:
        """Add the adapter, as vLLM does. `change` runs while vLLM reads the files."""
        before = files_of(str(self.folder))
        change()
        self.adapters.loaded(lora(self.folder, number=number, **fields), before)

    def ask(self, number: int = 1, **fields: Any) -> str | None:
        """Return the identity of a request's adapter; None if it is not known."""
        reuses = {name: fields.pop(name, False) for name in ("own_blocks", "own_media")}
        try:
            return identity(self.adapters, lora(self.folder, number=number, **fields), **reuses)
        except Unkeyed:
            return None


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    made = Engine(tmp_path / "adapter")
    yield made
    made.adapters.close()


def test_an_adapter_that_is_overwritten_is_not_shared_until_it_is_loaded_again(engine: Engine) -> None:
    first = engine.ask()
    second = engine.train(2)
    assert engine.ask() is None, "vLLM computes with the contents before"
    assert engine.train(1) == first
    assert engine.ask() is None, "vLLM may have read the contents between, after an eviction"
    engine.train(2)
    engine.add()
    assert engine.ask() is None, "without load_inplace vLLM may not have read them"
    engine.add(load_inplace=True)
    assert engine.ask() == second != first
    engine.train(3)
    assert engine.ask(number=2) not in (first, second, None), "another id is read at its first use"


def test_each_step_of_a_request_with_load_inplace_reads_the_files(engine: Engine) -> None:
    first = engine.ask(load_inplace=True)
    second = engine.train(2)
    assert engine.ask(load_inplace=True) == second != first
    assert engine.ask() == second


def test_files_are_those_at_the_time_when_the_adapter_was_added(engine: Engine) -> None:
    engine.add()
    engine.train(2)
    assert engine.ask() is None, "the first request comes after the files were overwritten"
    engine.add(number=2, change=lambda: engine.train(3))
    assert engine.ask(number=2) is None, "the files changed while vLLM read them"


def test_files_that_changed_before_they_were_read_are_not_known(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", 1)
    files = files_of(str(folder))
    assert files is not None
    assert digest_of(files) == new(lora(folder))
    flip(folder / "adapter_model.safetensors")
    assert digest_of(files) is None


def test_the_engines_own_cache_of_the_contents_before_is_not_shared(engine: Engine) -> None:
    """vLLM's prefix cache names adapters by name and path, its cache of encoded media by name."""
    assert engine.ask(own_blocks=True, own_media=True)
    engine.train(2)
    engine.add(load_inplace=True)
    assert engine.ask(own_blocks=True) is None
    assert engine.ask(own_media=True) is None
    assert engine.ask(own_blocks=True) is None, "later, blocks of both are cached"
    assert engine.ask() is not None


@pytest.mark.parametrize("path", ["absent", "owner/absent", "", "a\0b", "~nobody-here/x"])
def test_adapters_that_cannot_be_read_are_not_shared(tmp_path: Path, path: str) -> None:
    adapters = Adapters()
    for number in (1, 2):
        with pytest.raises(Unkeyed, match="cannot be read"):
            adapters.identity(
                lora(tmp_path / path if path == "absent" else path, number=number), own_blocks=False, own_media=False
            )
    adapters.close()


def test_a_path_that_blocks_or_is_no_file_is_not_read(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter", 1)
    (folder / "adapter_config.json").unlink()
    os.mkfifo(folder / "adapter_config.json")
    assert files_of(str(folder)) is None


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a repository in Hugging Face's cache, with two snapshots, of which the first is current."""
    root = tmp_path / "hub" / "models--owner--lora"
    for number, commit in enumerate("ab"):
        (root / "snapshots").mkdir(parents=True, exist_ok=True)
        write_adapter(root / "snapshots" / (40 * commit), number)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(40 * "a")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return root


@pytest.mark.parametrize("value", ["True", "1", " true "])
def test_a_repository_of_modelscope_is_not_looked_up_in_the_cache_of_hugging_face(
    repository: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    assert files_of("owner/lora") is not None
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", value)
    assert files_of("owner/lora") is None
    assert files_of(str(repository / "snapshots" / (40 * "a"))) is not None


@pytest.mark.parametrize("offline", [True, False])
def test_a_repository_is_its_resolved_commit(repository: Path, monkeypatch: pytest.MonkeyPatch, offline: bool) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    current = new(lora(repository / "snapshots" / (40 * "a")))
    adapters = Adapters()
    adapter = lora("owner/lora")
    if offline:
        assert identity(adapters, adapter) == current
    else:
        with pytest.raises(Unkeyed):  # vLLM asks for a newer commit when it loads
            identity(adapters, adapter)
        adapters.loaded(lora("owner/lora", number=2), None)
        adapter = lora("owner/lora", number=2)
        assert identity(adapters, adapter) == current
    (repository / "refs" / "main").write_text(40 * "b")
    with pytest.raises(Unkeyed):
        identity(adapters, adapter)
    adapters.close()


def test_a_request_reads_files_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[AdapterFiles] = []

    def note(files: AdapterFiles) -> str | None:
        read.append(files)
        return digest_of(files)

    monkeypatch.setattr("dataplane.engines.vllm.adapters.digest_of", note)
    for number in (1, 2, 3):
        assert engine.ask(number=number)
    assert len(read) == 1
