"""Fingerprints of the weights that an engine loads. Engines whose weights differ must not share blocks.

A fingerprint depends on contents: of the configuration, and of each weight file its size, its header and a few pages of
every tensor. It does not depend on paths, names of folders, times or hosts, so that copies share blocks. A small change
within a large tensor, for example of the embedding of one token, may not change it.

What cannot be read is not guessed: `WeightsUnknown`. The connectors then do without Larder, because blocks that no
later engine can identify would only displace others, in memory and in tiers.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from dataplane.base.durable_files import replace_file

_ANY = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_SAFETENSORS = (".safetensors",)
FORMATS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("auto", "hf", "bitsandbytes", "layered"), _ANY),
    **dict.fromkeys(("safetensors", "fastsafetensors", "instanttensor", "mistral"), _SAFETENSORS),
    **dict.fromkeys(("runai_streamer", "runai_streamer_sharded"), _SAFETENSORS),
    **dict.fromkeys(("sharded_state", "presharded"), _SAFETENSORS),
    "pt": (".pt", ".pth", ".bin"),
    "npcache": (".bin", ".pt"),
    "gguf": (".gguf",),
}
"""Suffixes of weight files by the engines' load formats. The first suffix that a folder has counts, as for the engines.
Other formats read weights from elsewhere: from another process, or from a server."""
DUMMY = "dummy"
"""Load format of engines that make up their weights."""
CONFIGURATION = {
    "config.json",
    "params.json",
    "hf_quant_config.json",
    "quant_config.json",
    "quantize_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "tekken.json",
}
"""Files that change KV values, beside weights, code (`*.py`) and indexes of weights (`*.index.json`). Tokenizers and
generation settings do not, except Mistral's `tekken.json`, which also says how images and audio are processed."""
PLACES = ("_name_or_path", "_commit_hash", "transformers_version")
"""Keys of a configuration that say where it comes from."""
PARTS = ("whisper-large-v3", "[tv]*er")
"""Folders, or patterns of them, within a model's folder from which engines load weights too: the encoder of Kimi-Audio;
`transformer` and `vision_encoder` of Cosmos3."""
_SPEED = (
    "enable_multithread_load",
    "num_threads",
    "concurrency",
    "memory_limit",
    "distributed",
    "enable_weights_track",
)
_NUMBER = re.compile("[0-9]+")
_GGUF_PART = re.compile(r"-[0-9]{5}(-of-[0-9]{5}\.gguf)$")

PAGE_BYTES = 4096
TENSOR_BYTES_PER_PAGE = 8 << 20
"""Of a tensor, the first and the last page are read, and one between them for each of these bytes: 13,000 pages for
100 GB in large tensors."""
MANY_TENSORS = 1000
"""A file with more tensors, such as experts, is read with one page less of each: 40,000 pages for 100 GB."""
FILE_BYTES_PER_PAGE = 1 << 20
"""The same for a file whose tensors are not known."""
EDGE_BYTES = 1 << 20
"""Bytes at both ends of such a file that are read whole. PyTorch's files end with the checksum of each tensor."""
WHOLE_BYTES = 256 << 20
"""Models of at most this size are read whole."""
MAX_HEADER_BYTES = 100 << 20
MAX_CONFIGURATION_BYTES = 64 << 20
THREADS = 16

CACHE_MAGIC = b"LARDERWEIGHTS1\n"
"""Changes whenever a fingerprint is computed differently."""
MAX_CACHE_BYTES = 64 << 20
SETTLED_NS = 2_000_000_000
"""A file that changed more recently may change again with the same time, and is not cached."""

_log = logging.getLogger("larder.weights")

FileState = tuple[str, bool, int, int, int, int]
"""Path, whether the file is read whole, bytes, mtime_ns, ctime_ns, inode: if equal, so are the contents."""


class WeightsUnknown(Exception):
    """Raised if it cannot be determined what an engine has loaded. The message says why."""


def fingerprint(
    model: str,
    *,
    load_format: str = "auto",
    revision: str = "",
    commit: str = "",
    download_dir: str = "",
    config: str = "",
    code_revision: str = "",
    release: str = "",
) -> str:
    """Return text that two engines share if they have loaded the same weights and configuration.

    `model`: a folder, a file, or the name of a Hugging Face repository. `revision`: branch, tag or commit of the
    repository; `commit`: the commit from which the engine has read the configuration, if it knows. `download_dir`:
    where the engine keeps repositories, if not in the default cache. `config`: folder or repository of the
    configuration, if not `model`. `code_revision`: branch, tag or commit of the code, if it is in a repository.
    `release`: of the engine, on which weights of the format "dummy" depend.

    A repository whose files are in the cache of this machine has the fingerprint of its files, which a copy of it has
    too. Otherwise, its commit is the fingerprint. Raise WeightsUnknown.
    """
    try:
        return _fingerprint(model, load_format.lower(), revision, commit, download_dir, config, code_revision, release)
    except OSError as error:
        raise WeightsUnknown(f"{error.filename or model} cannot be read: {error.strerror}") from None


def _fingerprint(
    model: str,
    load_format: str,
    revision: str,
    commit: str,
    download_dir: str,
    config: str,
    code_revision: str,
    release: str,
) -> str:
    suffixes = () if load_format == DUMMY else FORMATS.get(load_format)
    if suffixes is None:
        raise WeightsUnknown(f"with the load format {load_format!r}, weights do not come from files that Larder knows")
    path = Path(model)
    cached = None if path.exists() else _snapshot(model, revision, commit, download_dir)
    place = cached or path
    if not place.exists():
        if len(commit) != 40:
            raise WeightsUnknown(f"{model} is neither a folder nor a repository in the cache of Hugging Face")
        return _text("commit", [model.encode(), commit.encode(), load_format.encode(), release.encode()])
    files = [*_parts_of(place)] if place.is_file() else [*_weight_files(place, suffixes)]
    if suffixes and not files:
        raise WeightsUnknown(f"{place} has no weight files ({', '.join(suffixes)})")
    folder = _folder_of(config, download_dir) if config else place
    described = {} if place.is_file() else _configuration(place)
    if folder.is_dir():  # processors are beside the weights, and the rest where the configuration is
        described |= _configuration(folder)
    if not described and not place.is_file():
        raise WeightsUnknown(f"{folder} has no configuration: expected a config.json or params.json")
    parts = [part for name in sorted(described) for part in (name.encode(), described[name])]
    parts += [*_code_elsewhere(model, described, code_revision, download_dir), *_digests(files)]
    if not suffixes:
        parts += [load_format.encode(), release.encode()]
    elif load_format != "auto" and len({_NUMBER.sub("", file.name) for file in files}) > 1:
        parts.append(load_format.encode())  # of several sets of files, engines load one by the format
    if cached is None:  # a commit's files do not change
        _check_unchanged([*files, folder / "config.json"])
    return _text("weights", parts)


def _text(kind: str, parts: Iterable[bytes]) -> str:
    return f"{kind}-{sha256(msgspec.msgpack.encode(list(parts))).hexdigest()[:32]}"


def adapter(path: str, *, load_format: str = "auto", download_dir: str = "") -> str:
    """Return text that two engines share if they have loaded the same LoRA adapter.

    `path`: a folder, or the name of a Hugging Face repository. `load_format` and `download_dir`: of the engine's
    weights. Raise WeightsUnknown.
    """
    own = Path(path)
    is_folder = own.is_dir()
    configured, loaded = [own if is_folder else _snapshot(path, "", "", cache) for cache in ("", download_dir)]
    if configured is None or loaded is None:
        raise WeightsUnknown(f"{path} is neither a folder nor a repository in the cache of Hugging Face")
    try:
        config = configured / "adapter_config.json"
        files = [*_weight_files(loaded, FORMATS.get(load_format.lower(), _ANY))]
        if not files:
            raise WeightsUnknown(f"{loaded} has no weight files")
        parts = [config.read_bytes(), *_digests(files)]
        if is_folder:
            _check_unchanged([config, *files])
    except OSError as error:
        raise WeightsUnknown(f"{error.filename or path} cannot be read: {error.strerror}") from None
    return _text("adapter", parts)


def choices(loader_options: Any) -> list[tuple[str, Any]]:
    """Return the options of a loader (its extra configuration) that choose what is loaded, as the pattern of names of
    `sharded_state` does; of files and folders, the contents. The others make it faster, or check. Raise
    WeightsUnknown."""
    options = loader_options if isinstance(loader_options, dict) else {}
    return sorted(
        (str(name), contents(value) if isinstance(value, str) and value and os.path.exists(value) else value)
        for name, value in options.items()
        if name not in _SPEED
    )


def together(fingerprints: Sequence[str]) -> str:
    """Return one fingerprint for models that an engine uses together."""
    return fingerprints[0] if len(fingerprints) == 1 else _text("weights", [text.encode() for text in fingerprints])


def contents(path: str) -> str:
    """Return the digest of a file, or of all files in a folder; large files are read as weights are. Raise
    WeightsUnknown."""
    place = Path(path)
    try:
        files = [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())
        parts = [str(file.relative_to(place)).encode() for file in files] + _digests(files)
        _check_unchanged(files)
    except OSError as error:
        raise WeightsUnknown(f"{error.filename or path} cannot be read: {error.strerror}") from None
    return _text("contents", parts)


def default_name(model: str, served: str = "") -> str:
    """Return the name in Larder of a model that the operator has not named: the repository, or, of a folder, the
    `served` name, else the repository that it is a snapshot of, else the architecture. Never a path, because copies in
    other places share blocks."""
    path = Path(model)
    if not path.exists():
        return model
    if served and served != model:
        return served
    repository = path.parent.parent.name
    if path.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/")
    try:
        config = msgspec.json.decode((path / "config.json").read_bytes())
        return str((config.get("architectures") or [config["model_type"]])[0])
    except (OSError, msgspec.DecodeError, AttributeError, LookupError, TypeError, RecursionError):
        return "gguf" if path.suffix == ".gguf" else "model"


# ---- places


def uses_modelscope() -> bool:
    """Return whether vLLM takes repositories from ModelScope. What it takes for true depends on its release."""
    return os.environ.get("VLLM_USE_MODELSCOPE", "").strip().lower() not in ("", "0", "false")


def _snapshot(repository: str, revision: str, commit: str, download_dir: str) -> Path | None:
    """Return the folder with the files of a repository's commit; None if it is not in a cache of this machine. Raise
    WeightsUnknown for repositories that are not Hugging Face's."""
    if uses_modelscope():
        raise WeightsUnknown(
            f"{repository} is a repository of ModelScope (VLLM_USE_MODELSCOPE), where Larder does not look weights up;"
            " give the folder of its files"
        )
    for cache in filter(None, (download_dir, _hugging_face_cache())):
        folder = Path(cache) / f"models--{repository.replace('/', '--')}"
        try:
            snapshot_commit = (folder / "refs" / (revision or "main")).read_text().strip()
        except OSError:
            snapshot_commit = revision or commit
        snapshot = folder / "snapshots" / snapshot_commit
        if not snapshot_commit or not snapshot.is_dir():
            continue
        if commit and snapshot_commit != commit:
            raise WeightsUnknown(
                f"the repository {repository} changed from commit {commit} to {snapshot_commit} while the engine loaded"
                " it; start the engine again"
            )
        return snapshot
    return None


def _hugging_face_cache() -> str:
    """Return the default cache of Hugging Face."""
    try:
        from huggingface_hub.constants import HF_HUB_CACHE  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return ""
    return str(HF_HUB_CACHE)


def _folder_of(config: str, download_dir: str) -> Path:
    path = Path(config) if os.path.exists(config) else _snapshot(config, "", "", download_dir)
    if path is None:
        raise WeightsUnknown(f"the configuration {config} is neither a folder nor a repository in the cache")
    return path if path.is_dir() else path.parent


def _weight_files(folder: Path, suffixes: Sequence[str]) -> Iterator[Path]:
    """Yield the weight files of a folder."""
    file_names = sorted(os.listdir(folder))
    for suffix in suffixes:
        chosen = [folder / name for name in file_names if name.endswith(suffix)]
        if chosen:
            yield from chosen
            break
    for part in _parts(folder) if suffixes else ():
        yield from _weight_files(part, suffixes)


def _parts_of(file: Path) -> Iterator[Path]:
    """Yield a weight file, and the files beside it that engines load with one of GGUF: its other parts, and projectors
    of images."""
    yield file
    if file.suffix != ".gguf":
        return
    part = _GGUF_PART.search(file.name)
    for name in sorted(os.listdir(file.parent)):
        other_part = part and _GGUF_PART.sub("", name) == file.name[: part.start()] and name.endswith(part[1])
        if name != file.name and name.endswith(".gguf") and (other_part or "mmproj" in name.lower()):
            yield file.parent / name


def _parts(folder: Path) -> list[Path]:
    return [path for part in PARTS for path in sorted(folder.glob(part)) if path.is_dir()]


def _configuration(folder: Path) -> dict[str, bytes]:
    """Return the contents, by name, of the files of a folder that change KV values, without what says where they come
    from."""
    described = [path for place in (folder, *_parts(folder)) for path in place.iterdir() if path.name in CONFIGURATION]
    others = [path for pattern in ("*.index.json", "*.py", "*/*.py") for path in folder.glob(pattern)]
    return {str(path.relative_to(folder)): _content(path) for path in (*described, *others)}


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(MAX_CONFIGURATION_BYTES)
    try:
        decoded = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return content  # code, or JSON that only the engine reads
    for place in PLACES if isinstance(decoded, dict) else ():
        decoded.pop(place, None)
    return msgspec.json.encode(decoded, order="sorted")


def _code_elsewhere(
    model: str, described: Mapping[str, bytes], code_revision: str, download_dir: str
) -> Iterator[bytes]:
    """Yield the code of a model that is not beside its configuration: of another repository, or another revision. Code
    that is not on this machine is not used."""
    try:
        named = msgspec.json.decode(described.get("config.json", b"{}"), type=dict[str, Any]).get("auto_map")
    except (msgspec.DecodeError, RecursionError):
        return
    classes = [str(name) for name in named.values()] if isinstance(named, dict) else []
    repositories = {name.partition("--")[0].strip("[' ") for name in classes if "--" in name}
    if code_revision:
        repositories.add(model)
    for repository in sorted(repositories):
        snapshot = None if os.path.exists(repository) else _snapshot(repository, code_revision, "", download_dir)
        for path in sorted(snapshot.rglob("*.py")) if snapshot is not None else ():
            yield str(path.relative_to(snapshot)).encode() if snapshot is not None else b""
            yield _content(path)


def _check_unchanged(paths: Sequence[Path]) -> None:
    """Raise WeightsUnknown if a file changed while the engine may have been loading it. That is not known in a process
    that the engine has not started, for example a script."""
    if multiprocessing.parent_process() is None:
        return
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    for path in paths:
        if path.exists() and path.stat().st_ctime > started_s:
            raise WeightsUnknown(f"{path} has changed since the engine started; start the engine again")
    for place in {place for path in paths for place in _ways_to(path)}:
        status = place.lstat()
        renamed = stat.S_ISLNK(status.st_mode) or status.st_mtime <= started_s  # a later entry changes both times
        if renamed and status.st_ctime > started_s:
            raise WeightsUnknown(
                f"{place} was replaced, or its attributes changed, since the engine started; start the engine again"
            )


def _ways_to(path: Path) -> Iterator[Path]:
    """Yield the links and folders by which a file is found."""
    for place in (path, *path.absolute().parents):
        if place.is_symlink():
            yield place
            yield from _ways_to(place.parent / os.readlink(place))
        elif place.is_dir():
            yield place


# ---- contents


def _digests(files: Sequence[Path]) -> list[bytes]:
    """Return the digests of weight files, sorted, because names do not matter."""
    whole = sum(file.stat().st_size for file in files) <= WHOLE_BYTES
    cache = _Cache(files)
    with ThreadPoolExecutor(THREADS, thread_name_prefix="larder-weights") as threads:
        digests = dict(threads.map(lambda path: _digest(path, whole, cache.digests), files))
    cache.save(digests)
    return sorted(digests.values())


def _digest(path: Path, whole: bool, cached_digests: Mapping[FileState, bytes]) -> tuple[FileState, bytes]:
    """Return the state of a weight file, and the digest of its size, header and sampled pages."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        state, regular = _state(path, fd, whole)
        if not regular:
            raise WeightsUnknown(f"{path} is not a file")
        if state in cached_digests:
            return state, cached_digests[state]
        size = state[2]
        hasher = sha256(size.to_bytes(8, "little"))
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL if whole else os.POSIX_FADV_RANDOM)
        for offset, nbytes in [(0, size)] if whole else _samples(fd, size):
            for first in range(offset, offset + nbytes, 1 << 20):
                hasher.update(os.pread(fd, min(1 << 20, offset + nbytes - first), first))
        if _state(path, fd, whole)[0] != state:
            raise WeightsUnknown(f"{path} changed while it was read; start the engine again")
        return state, hasher.digest()
    finally:
        os.close(fd)


def _state(path: Path, fd: int, whole: bool) -> tuple[FileState, bool]:
    status = os.fstat(fd)
    state = str(path.absolute()), whole, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
    return state, stat.S_ISREG(status.st_mode)


def _samples(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield offsets and bytes of what is read of a file: of the format safetensors, the header and pages of every
    tensor; else both ends and pages between them."""
    length = int.from_bytes(os.pread(fd, 8, 0), "little")
    start = 8 + length
    tensors = _tensors(os.pread(fd, length, 8), size - start) if length <= min(size - 8, MAX_HEADER_BYTES) else None
    if tensors is None:
        edge = min(size, EDGE_BYTES)
        yield 0, edge
        yield from _pages(0, size, FILE_BYTES_PER_PAGE)
        yield size - edge, edge
        return
    yield 0, start
    least = 1 if len(tensors) > MANY_TENSORS else 2
    for first, end in tensors:
        yield from _pages(start + first, end - first, TENSOR_BYTES_PER_PAGE, least)


def _tensors(header: bytes, nbytes: int) -> list[tuple[int, int]] | None:
    """Return the first bytes and ends of the tensors in a header of the format safetensors, in the order of the file;
    None if it is not such a header."""
    try:
        described: Any = msgspec.json.decode(header)
        spans = sorted(tuple(tensor["data_offsets"]) for name, tensor in described.items() if name != "__metadata__")
    except (msgspec.DecodeError, AttributeError, LookupError, TypeError, RecursionError):
        return None
    fits = all(
        len(span) == 2 and all(type(at) is int for at in span) and 0 <= span[0] <= span[1] <= nbytes for span in spans
    )
    return spans if spans and fits else None


def _pages(offset: int, nbytes: int, bytes_per_page: int, least: int = 2) -> Iterator[tuple[int, int]]:
    """Yield evenly spaced pages of a range: at least `least`, beginning with the first page."""
    count = 1 if nbytes <= PAGE_BYTES else least + nbytes // bytes_per_page
    last = max(0, nbytes - PAGE_BYTES)
    for at in range(count):
        yield offset + (last * at // (count - 1) if count > 1 else 0), min(PAGE_BYTES, nbytes)


# ---- the cache of digests


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "larder" / "weights"


class _Cache:
    """Digests of a model's files, from the last start of an engine. A cache that is broken, or that another user could
    have written, is ignored. The workers of an engine may write it at once; the last one that succeeds counts."""

    def __init__(self, files: Sequence[Path]) -> None:
        name = sha256(msgspec.msgpack.encode([str(file.absolute()) for file in files])).hexdigest()[:32]
        self._path = _cache_folder() / name
        self.digests: dict[FileState, bytes] = {}
        try:
            self.digests = self._read()
        except (OSError, ValueError, TypeError) as error:
            _log.debug("%s is ignored: %s", self._path, error)

    def _read(self) -> dict[FileState, bytes]:
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if (
                status.st_uid != os.geteuid()
                or stat.S_IMODE(status.st_mode) & 0o077
                or not stat.S_ISREG(status.st_mode)
            ):
                raise ValueError("expected a file of this user that others cannot access")
            content = file.read(MAX_CACHE_BYTES)
        start = len(CACHE_MAGIC) + 32
        body = content[start:]
        if content[:start] != CACHE_MAGIC + sha256(body).digest():
            raise ValueError("its contents do not match their digest")
        return dict(msgspec.msgpack.decode(body, type=list[tuple[FileState, bytes]]))

    def save(self, digests: Mapping[FileState, bytes]) -> None:
        """Keep digests for the next start, unless they are kept already or their files have just changed."""
        recent_ns = time.time_ns() - SETTLED_NS
        if digests == self.digests or any(max(state[3], state[4]) > recent_ns for state in digests):
            return
        body = msgspec.msgpack.encode(list(digests.items()))
        try:
            for folder in (*reversed(self._path.parents),):
                if not folder.exists():
                    folder.mkdir(0o700, exist_ok=True)
            replace_file(self._path, CACHE_MAGIC + sha256(body).digest() + body)
        except OSError as error:
            _log.info("fingerprints of weights are not kept for the next start: %s", error)
