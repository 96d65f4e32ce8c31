"""Fingerprints of weights: equal for copies, different for other contents, and unknown where nothing can be read."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataplane.engines import weights
from dataplane.engines.weights import WeightsUnknown, adapter, default_name, fingerprint
from tests.engines.model_folder import SMALL, write_folder, write_weights

FILE = "model-0.safetensors"
COMMIT = "c" * 40


@pytest.fixture(params=["whole", "sampled"], autouse=True)
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Read files whole, or only pages of every tensor, as of large models."""
    if request.param == "sampled":
        monkeypatch.setattr(weights, "WHOLE_BYTES", 0)
    monkeypatch.setattr(weights, "SETTLED_NS", -(10**15))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return str(request.param)


def change(path: Path, at: int, by: int = 1) -> None:
    """Change a byte of a file, with its size and times as before."""
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    content = bytearray(path.read_bytes())
    content[at] ^= by
    path.write_bytes(content)
    os.utime(path, ns=times)


def test_copies_elsewhere_have_the_same_fingerprint(tmp_path: Path) -> None:
    first = write_folder(tmp_path / "a", files=3)
    copy = Path(shutil.copytree(first, tmp_path / "elsewhere" / "b"))
    for path in copy.iterdir():
        os.utime(path, (1, 1))
    (copy / "model-2.safetensors").rename(copy / "renamed.safetensors")
    config = json.loads((copy / "config.json").read_text())
    text = json.dumps({"_name_or_path": "/x", **dict(reversed(config.items())), "transformers_version": "9"}, indent=4)
    (copy / "config.json").write_text(text)
    for name in ("tokenizer.json", "generation_config.json", "README.md"):
        (copy / name).write_text("{}")
    (copy / "adapters").mkdir()
    write_weights(copy / "adapters" / "adapter_model.safetensors")
    assert fingerprint(str(first)) == fingerprint(str(copy)) == fingerprint(str(first), load_format="safetensors")


@pytest.mark.parametrize("name", list(SMALL))
def test_every_tensor_counts(tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path / "m")
    before = fingerprint(str(folder))
    write_weights(folder / FILE, {f"0.{each}": shape for each, shape in SMALL.items() if each != name}, 1)
    missing = fingerprint(str(folder))
    parts = {f"0.{each}": shape for each, shape in SMALL.items()}
    write_weights(folder / FILE, parts, 1)
    assert fingerprint(str(folder)) == before
    header, other = (folder / FILE).read_bytes(), tmp_path / "other"
    write_weights(other, parts, 2)
    length = 8 + int.from_bytes(header[:8], "little")
    first, end = json.loads(header[8:length])[f"0.{name}"]["data_offsets"]
    content = header[: length + first] + other.read_bytes()[length + first : length + end] + header[length + end :]
    (folder / FILE).write_bytes(content)
    assert len({before, missing, fingerprint(str(folder))}) == 3


def test_of_several_sets_of_files_the_one_that_the_format_chooses_counts(tmp_path: Path) -> None:
    """vLLM loads `consolidated*.safetensors` of Mistral's folders by default, and others with other formats."""
    folder = write_folder(tmp_path / "model")
    formats = ("auto", "mistral", "safetensors")
    assert len({fingerprint(str(folder), load_format=each) for each in formats}) == 1
    write_weights(folder / "consolidated.safetensors", seed=2)
    assert len({fingerprint(str(folder), load_format=each) for each in formats}) == 3


@pytest.mark.parametrize("at", [0, 4095, 1 << 19, (3 << 20) - 4096, (3 << 20) - 1])
@pytest.mark.parametrize(("suffix", "load_format"), [(".bin", "auto"), (".pt", "pt"), (".gguf", "gguf")])
def test_pages_of_other_formats_count(tmp_path: Path, suffix: str, load_format: str, at: int) -> None:
    folder = write_folder(tmp_path / "m", files=0)
    path = folder / f"model{suffix}"
    path.write_bytes(os.urandom(3 << 20))
    before = fingerprint(str(folder), load_format=load_format)
    change(path, at)
    assert fingerprint(str(folder), load_format=load_format) != before
    change(path, at)
    assert fingerprint(str(folder), load_format=load_format) == before


def test_what_is_loaded_with_a_file_counts(tmp_path: Path) -> None:
    """Engines load all parts of a model in GGUF, and the projector of images beside it, if they are given one file."""
    folder = tmp_path / "m"
    folder.mkdir()
    names = [f"m-Q4-0000{part}-of-00002.gguf" for part in (1, 2)] + ["mmproj-m.gguf"]
    for name in (*names, "m-Q8-00001-of-00002.gguf", "m-Q4-00001-of-00003.gguf", "m-Q4.gguf", "notes"):
        (folder / name).write_bytes(b"GGUF")

    def found(name: str = names[0]) -> str:
        return fingerprint(str(folder / name), load_format="gguf")

    before, alone = found(), found("m-Q8-00001-of-00002.gguf")
    for name in ("m-Q8-00001-of-00002.gguf", "m-Q4-00001-of-00003.gguf", "m-Q4.gguf", "notes"):
        (folder / name).write_bytes(b"of another model")
        assert found() == before
    for name in names:
        (folder / name).write_bytes(b"other")
        assert found() != before
        (folder / name).write_bytes(b"GGUF")
    assert found() == before != alone
    assert fingerprint(str(shutil.copytree(folder, tmp_path / "copy") / names[0]), load_format="gguf") == before


@pytest.mark.parametrize(
    "name",
    ["config.json", "params.json", "hf_quant_config.json", "preprocessor_config.json", "model.safetensors.index.json",
     "modeling_own.py", "code/modeling_own.py", "whisper-large-v3/config.json", "tekken.json"],
)  # fmt: skip
def test_the_configuration_counts(tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path / "m")
    before = fingerprint(str(folder))
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text('{"rope_theta": 5}')
    assert fingerprint(str(folder)) != before
    dummy = fingerprint(str(folder), load_format="dummy", release="1")
    assert len({dummy, fingerprint(str(folder), load_format="dummy", release="2"), before}) == 3


def test_the_configuration_may_be_in_another_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    one, copy, other = (write_folder(tmp_path / name, files=0, rope=at) for name, at in (("a", 1), ("b", 1), ("c", 2)))
    found = [fingerprint(str(folder), config=str(each)) for each in (one, copy, other)]
    assert found[0] == found[1] != found[2]


def test_processors_count_beside_the_weights_if_the_configuration_is_in_another_folder(tmp_path: Path) -> None:
    folder, config = write_folder(tmp_path / "m"), write_folder(tmp_path / "config", files=0)
    before = fingerprint(str(folder), config=str(config))
    (folder / "preprocessor_config.json").write_text('{"image_mean": [0]}')
    assert fingerprint(str(folder), config=str(config)) != before


@pytest.mark.parametrize("part", ["whisper-large-v3", "transformer", "vision_encoder"])
def test_weights_in_parts_of_a_folder_count(tmp_path: Path, part: str) -> None:
    folder = write_folder(tmp_path / "m")
    before = fingerprint(str(folder))
    write_weights(write_folder(folder / part) / FILE, seed=1)
    first = fingerprint(str(folder))
    write_weights(folder / part / FILE, seed=2)
    assert len({before, first, fingerprint(str(folder))}) == 3


def test_code_in_another_repository_or_at_another_revision_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only if it is in the cache: code that is not there is not used."""
    cache = tmp_path / "downloads"
    monkeypatch.setattr(weights, "_hugging_face_cache", lambda: str(cache))
    folder = write_folder(tmp_path / "m", auto_map={"AutoModelForCausalLM": "org/name--modeling_own.Own"})
    code = {"main": repository(cache, 1), "dev": repository(cache, 1, "d" * 40)}
    (cache / "models--org--name" / "refs" / "dev").write_text("d" * 40)
    (cache / "models--org--name" / "refs" / "main").write_text(COMMIT)

    def found() -> tuple[str, str]:
        return fingerprint(str(folder)), fingerprint(str(folder), code_revision="dev")

    before = found()
    (code["main"] / "modeling_own.py").write_text("x = 1")
    main = found()
    (code["dev"] / "modeling_own.py").write_text("x = 1")
    assert main[0] != before[0]
    assert main[1] == before[1] != found()[1]
    own = fingerprint("org/name", code_revision="dev")
    (code["dev"] / "modeling_own.py").write_text("x = 2")
    assert fingerprint("org/name", code_revision="dev") != own


def make_fifo(folder: Path) -> None:
    (folder / FILE).unlink()
    os.mkfifo(folder / FILE)


def repository(cache: Path, seed: int, commit: str = COMMIT) -> Path:
    """Put a repository into a cache of Hugging Face; return its snapshot."""
    repository = cache / "models--org--name"
    snapshot = write_folder(repository / "snapshots" / commit, seed)
    (repository / "blobs").mkdir(exist_ok=True)
    (snapshot / FILE).rename(repository / "blobs" / commit)
    (snapshot / FILE).symlink_to(repository / "blobs" / commit)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / "main").write_text(commit)
    return snapshot


def test_a_repository_has_the_fingerprint_of_a_copy_of_its_files(tmp_path: Path) -> None:
    snapshot = repository(tmp_path / "downloads", 1)
    copy = write_folder(tmp_path / "copy", 1)
    expected = fingerprint(str(copy))
    for options in ({}, {"commit": COMMIT}, {"revision": COMMIT}, {"revision": "main"}):
        assert fingerprint("org/name", download_dir=str(tmp_path / "downloads"), **options) == expected
    assert fingerprint(str(snapshot)) == expected
    assert (default_name("org/name"), default_name(str(snapshot))) == ("org/name", "org/name")
    repository(tmp_path / "downloads", 2, "d" * 40)
    assert fingerprint("org/name", download_dir=str(tmp_path / "downloads")) != expected
    assert fingerprint("org/name", download_dir=str(tmp_path / "downloads"), revision=COMMIT) == expected
    with pytest.raises(WeightsUnknown, match=r"changed from commit c+ to d+ while the engine loaded it"):
        fingerprint("org/name", download_dir=str(tmp_path / "downloads"), commit=COMMIT)


def test_an_adapter_in_a_repository_has_the_fingerprint_of_a_copy_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "_hugging_face_cache", lambda: str(tmp_path / "cache"))
    snapshot = repository(tmp_path / "cache", 1)
    (snapshot / "adapter_config.json").write_text('{"r": 8}')
    expected = adapter(str(shutil.copytree(snapshot, tmp_path / "copy")))
    assert adapter("org/name") == expected
    repository(tmp_path / "downloads", 2)
    assert adapter("org/name", download_dir=str(tmp_path / "downloads")) != expected, (
        "only weights are downloaded there"
    )
    with pytest.raises(WeightsUnknown, match="other is neither a folder nor a repository"):
        adapter("org/other")


@pytest.mark.parametrize("value", ["True", "true", "1", " 1 ", "yes"])
def test_a_repository_of_modelscope_is_not_looked_up_in_the_cache_of_hugging_face(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    snapshot = repository(tmp_path, 1)
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", value)
    for options in ({}, {"commit": COMMIT}):
        with pytest.raises(WeightsUnknown, match="org/name is a repository of ModelScope"):
            fingerprint("org/name", download_dir=str(tmp_path), **options)
    with pytest.raises(WeightsUnknown, match="ModelScope"):
        fingerprint(str(snapshot), config="org/name", download_dir=str(tmp_path))
    assert fingerprint(str(snapshot))
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", "False")
    assert fingerprint("org/name", download_dir=str(tmp_path))


def test_of_a_repository_whose_files_are_elsewhere_the_commit_counts() -> None:
    found = {fingerprint("org/elsewhere", commit=commit, load_format=each) for commit in (COMMIT, "d" * 40)
             for each in ("auto", "dummy")}  # fmt: skip
    assert len(found) == 4


@pytest.mark.parametrize(
    ("spoil", "options", "why"),
    [
        (lambda folder: shutil.rmtree(folder), {}, "is neither a folder nor a repository"),
        (lambda folder: (folder / FILE).unlink(), {}, r"has no weight files \(\.safetensors"),
        (lambda folder: (folder / "config.json").unlink(), {}, "has no configuration"),
        (lambda folder: (folder / "config.json").unlink(), {"load_format": "dummy"}, "has no configuration"),
        (make_fifo, {}, "is not a file"),
        (lambda folder: ((folder / FILE).unlink(), (folder / FILE).symlink_to("gone")), {}, "cannot be read: No such"),
        (lambda folder: None, {"load_format": "tensorizer"}, "with the load format 'tensorizer', weights do not come"),
        (lambda folder: None, {"load_format": "pt"}, "has no weight files"),
        (lambda folder: None, {"config": "/nowhere"}, "configuration /nowhere is neither"),
    ],
)
def test_what_cannot_be_read_is_not_guessed(
    tmp_path: Path, spoil: Callable[[Path], object], options: dict[str, str], why: str
) -> None:
    folder = write_folder(tmp_path / "m")
    spoil(folder)
    with pytest.raises(WeightsUnknown, match=why):
        fingerprint(str(folder), **options)


@pytest.mark.parametrize(
    "header", [b"", b"\0" * 7, b"\xff" * 64, b"\x02" + b"\0" * 7 + b"[]", b"\x02" + b"\0" * 7 + b"{}"]
)
def test_files_with_broken_headers_are_compared_by_their_pages(tmp_path: Path, header: bytes) -> None:
    folder = write_folder(tmp_path / "m")
    path = folder / FILE
    path.write_bytes(header + b"a" * 5000)
    before = fingerprint(str(folder))
    path.write_bytes(header + b"b" * 5000)
    assert fingerprint(str(folder)) != before


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    reads: list[int] = []
    read = os.pread

    def counted(fd: int, nbytes: int, offset: int) -> bytes:
        reads.append(nbytes)
        return read(fd, nbytes, offset)

    monkeypatch.setattr(os, "pread", counted)
    return reads


def test_a_restart_reads_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = os.umask(0)
    try:
        folder = write_folder(tmp_path / "m", files=3)
        reads = count_reads(monkeypatch)
        before = fingerprint(str(folder))
        assert reads
        reads.clear()
        assert fingerprint(str(folder)) == before
        assert not reads
    finally:
        os.umask(old)
    cache = tmp_path / "cache" / "larder" / "weights"
    modes = {each.stat().st_mode & 0o777 for each in (cache, cache.parent, cache.parent.parent)}
    assert (modes, [each.stat().st_mode & 0o777 for each in cache.iterdir()]) == ({0o700}, [0o600])
    change(folder / FILE, -1)
    assert fingerprint(str(folder)) != before


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: change(path, -1),
        lambda path: path.chmod(0o620),
        lambda path: (path.rename(path.with_name("moved")), path.symlink_to("moved")),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), path.write_bytes(os.urandom(5000)), path.chmod(0o600)),
    ],
)
def test_a_broken_or_foreign_cache_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], Any]
) -> None:
    folder = write_folder(tmp_path / "m")
    before = fingerprint(str(folder))
    (kept,) = (tmp_path / "cache" / "larder" / "weights").iterdir()
    spoil(kept)
    reads = count_reads(monkeypatch)
    assert fingerprint(str(folder)) == before
    assert reads


def test_files_that_have_just_changed_are_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "SETTLED_NS", 10**15)
    fingerprint(str(write_folder(tmp_path / "m")))
    assert not (tmp_path / "cache").exists()


def _in_child(folders: list[str], begin: Any, answers: Any) -> None:
    begin.wait(60)
    for folder in folders:
        try:
            answers.put(fingerprint(folder))
        except WeightsUnknown as error:
            answers.put(str(error))


def rewrite(folder: Path, name: str) -> None:
    (folder / name).write_bytes((folder / name).read_bytes())


def link_elsewhere(link: Path) -> None:
    """Let a link name another folder, or another file, that is as old as the engine's."""
    other = link.with_name(f"new {link.name}")
    other.symlink_to(Path(os.readlink(link)).with_name("older"))
    other.rename(link)


def swap(folder: Path) -> None:
    folder.rename(folder.with_name("away"))
    folder.with_name("older").rename(folder)


CHANGES: dict[str, Callable[[Path], None]] = {
    "nothing": lambda folder: None,
    "an entry beside the files": lambda folder: (folder / "notes").touch(),
    "configuration": lambda folder: rewrite(folder, "config.json"),
    "weights": lambda folder: rewrite(folder, FILE),
    "link to a file": lambda folder: link_elsewhere(folder / "linked.safetensors"),
    "link to the folder": lambda folder: link_elsewhere(folder.with_name("link")),
    "link above the folder": lambda folder: link_elsewhere(folder.parent.with_name("way")),
    "folder": swap,
}


def test_files_that_change_while_an_engine_loads_them_are_unknown(tmp_path: Path) -> None:
    """Also if they are replaced by older ones."""
    places = {}
    for change in CHANGES:
        place = tmp_path / change / "models"
        place.mkdir(parents=True)
        for name in ("m", "older"):
            write_weights(write_folder(place / name) / "other", seed=3)
        (place / "m" / "older").write_bytes((place / "m" / "other").read_bytes())
        (place / "m" / "linked.safetensors").symlink_to(place / "m" / "other")
        (place / "link").symlink_to(place / "m")
        (place.parent / "way").symlink_to(place)
        shutil.copytree(place, place.with_name("older"))
        places[change] = place.parent / "way" / "link"
    expected = fingerprint(str(places["nothing"]))
    context = multiprocessing.get_context("spawn")
    begin, answers = context.Event(), context.Queue()
    child = context.Process(target=_in_child, args=([str(place) for place in places.values()], begin, answers))
    newest = max(path.lstat().st_ctime for path in tmp_path.rglob("*"))
    while True:  # the process begins later than the files, by more than a tick of the clock of processes
        (tmp_path / "clock").touch()
        if (tmp_path / "clock").stat().st_ctime > newest + 0.05:
            break
    child.start()
    try:
        for change, place in places.items():
            CHANGES[change](place.parent.resolve() / "m")
        begin.set()
        found = dict(zip(places, [answers.get(timeout=120) for _ in places], strict=True))
    finally:
        child.join(60)
    assert found.pop("nothing") == found.pop("an entry beside the files") == expected
    assert {name for name, answer in found.items() if "since the engine started" not in answer} == set()


def test_names_of_models_are_no_paths(tmp_path: Path) -> None:
    folder = str(write_folder(tmp_path / "m"))
    assert default_name(folder) == default_name(folder, folder) == "LlamaForCausalLM"
    assert default_name(folder, "chat") == "chat"
    assert default_name("org/name", "chat") == "org/name"
    Path(folder, "config.json").unlink()
    assert default_name(folder) == "model"
