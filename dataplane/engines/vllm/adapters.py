"""Which contents of adapters (LoRA) a vLLM engine computes with.

An adapter may be trained again under the same name and path, and copies of it are at other paths on other nodes. So
keys carry a digest of the bytes that vLLM reads.

vLLM 0.32 keeps a loaded adapter under its `lora_int_id`. It reads the files

* when the adapter is added (`/v1/load_lora_adapter`, `add_lora`), else in the first step of its first request,
* with `load_inplace`, when it is added again, and in each step that has such a request,
* again after its cache of adapters (`max_cpu_loras`) has evicted the adapter, which the scheduler does not see.

So files that were overwritten without `load_inplace` leave open what the engine computes with: requests of the adapter
are then not shared. It is not known if files change within the step that reads them.
"""

from __future__ import annotations

import stat
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from dataplane.engines.vllm.request_keys import Unkeyed
from dataplane.engines.weights import uses_modelscope

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")
"""vLLM reads the first of these that exists."""
SETTLED_NS = 50_000_000
"""A file system may give two changes within this time the same time."""
MAX_DIGESTS = 4096


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """The files of an adapter at one moment. Equal ones have the same contents."""

    stats: tuple[tuple[int, ...], ...]
    """Device, inode, size, and times of change of each file."""
    paths: tuple[Path, ...] = field(compare=False)
    downloads: bool = field(default=False, compare=False)
    """Whether vLLM asks the repository for newer files before it loads these."""

    @property
    def changed_ns(self) -> int:
        """Time of the last change."""
        return max(file_stat[-1] for file_stat in self.stats)


def files_of(lora_path: str) -> AdapterFiles | None:
    """Return the files that vLLM reads for an adapter's path, which is a folder or the id of a Hugging Face repository.
    None if they are not on this machine."""
    try:
        folder, downloads = _folder(lora_path)
        weights = next((name for name in WEIGHTS if (folder / name).is_file()), "")
        paths = (folder / CONFIG, folder / weights)
        return AdapterFiles(tuple(_stat(path) for path in paths), paths, downloads)
    except (OSError, ValueError, RuntimeError, ImportError):  # RuntimeError: no home folder
        return None


def _stat(path: Path) -> tuple[int, ...]:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path}: expected a file")
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _folder(lora_path: str) -> tuple[Path, bool]:
    """Return the folder that vLLM resolves a path to, and whether it is a snapshot that a load may renew. Raise
    OSError, or ValueError for an invalid id."""
    folder = Path(lora_path).expanduser()
    if folder.is_absolute() or folder.exists():
        return folder, False
    if uses_modelscope():
        raise OSError(f"{lora_path}: repositories of ModelScope are not looked up")
    from huggingface_hub import constants, try_to_load_from_cache

    cached_path = try_to_load_from_cache(lora_path, CONFIG)
    if not isinstance(cached_path, str):
        raise OSError(f"{lora_path}: not downloaded")
    return Path(cached_path).parent, not constants.HF_HUB_OFFLINE


def digest_of(files: AdapterFiles) -> str | None:
    """Return the digest of the files' contents; None if the files have changed or cannot be read. May take seconds."""
    wait_ns = min(SETTLED_NS, SETTLED_NS - (time.time_ns() - files.changed_ns))
    if wait_ns > 0:
        time.sleep(wait_ns / 1e9)
    digest = sha256(b"larder.adapter.1")
    try:
        for path in files.paths:
            with path.open("rb") as file:
                digest.update(path.name.encode() + b"\0" + file_digest(file, "sha256").digest())
        unchanged = tuple(_stat(path) for path in files.paths) == files.stats
    except OSError:
        return None
    return digest.hexdigest() if unchanged else None


class Adapters:
    """Identities of the adapters of one engine. A request costs a few `stat`; a thread reads files."""

    def __init__(self, options: str = "") -> None:
        """`options`: digest of the engine's options that change what it makes of an adapter."""
        self._options = options
        self._loaded: dict[int, AdapterFiles | None] = {}
        """Files that the engine holds under each id; None if this is not known."""
        self._digests: dict[AdapterFiles, str | None] = {}
        """None for files that changed before they were read."""
        self._reading: dict[AdapterFiles, Future[str | None]] = {}
        self._cached: dict[tuple[str, ...], str] = {}
        """Identity of the adapter that all of the engine's own cached blocks of a name and path, and all its own media
        of a name, were computed with; empty if there were several."""
        self._reader = ThreadPoolExecutor(1, "larder-adapters")

    def loaded(self, lora: Any, before: AdapterFiles | None) -> None:
        """Note that vLLM added an adapter. `before`: its files before that."""
        if lora.lora_int_id in self._loaded and not lora.load_inplace:
            return
        now = files_of(lora.lora_path)
        self._loaded[lora.lora_int_id] = now if before in (None, now) else None
        if now is not None:
            self._read(now)

    def identity(self, lora: Any, *, own_blocks: bool, own_media: bool) -> str | None:
        """Return text that identifies the adapter that vLLM computes a request with; None while its files are read.

        `own_blocks` and `own_media`: whether the request uses blocks, or encoded media, that the engine has cached
        under the adapter's name. Raise Unkeyed if the identity is not known.
        """
        try:
            identity = self._identity(lora)
        except Unkeyed:
            self._agree(lora, "")
            raise
        if identity is None:
            return None
        blocks, media = self._agree(lora, identity)
        if (own_blocks and not blocks) or (own_media and not media):
            raise Unkeyed(
                "adapter", f"vLLM's own cache has entries of other contents of adapter {lora.lora_name!r:.80}"
            )
        return identity

    def _agree(self, lora: Any, identity: str) -> list[bool]:
        """Note that the engine computes with an adapter. Return whether its own cached blocks, and its own media, were
        computed with the same."""
        agreed = []
        for name in ((lora.lora_name, lora.lora_path), (lora.lora_name,)):
            agreed.append(self._cached.setdefault(name, identity) == identity != "")
            if not agreed[-1]:
                self._cached[name] = ""
        return agreed

    def _identity(self, lora: Any) -> str | None:
        number, shown = lora.lora_int_id, f"adapter {lora.lora_name!r:.80} at {lora.lora_path!r:.160}"
        if getattr(lora, "tensorizer_config_dict", None):  # until 0.31
            raise Unkeyed("adapter", f"{shown}: tensorizer reads it from elsewhere")
        current = files_of(lora.lora_path)
        if current is None:
            self._loaded.setdefault(number, None)
            raise Unkeyed("adapter", f"{shown}: its files cannot be read")
        if lora.load_inplace:
            self._loaded[number] = current
        loaded = self._loaded.setdefault(number, None if current.downloads else current)
        if loaded is None:
            raise Unkeyed("adapter", f"{shown}: what vLLM loaded is not known")
        are_read = [self._read(files) for files in (loaded, current)]
        if not all(are_read):
            return None
        digest = self._digests.get(loaded)
        if digest is None or digest != self._digests.get(current):
            self._loaded[number] = None
            raise Unkeyed(
                "adapter", f"{shown}: its files have changed; load it from another path, or with load_inplace"
            )
        return "/".join(filter(None, (digest, "3d" if lora.is_3d_lora_weight else "", self._options)))

    def _read(self, files: AdapterFiles) -> bool:
        """Return whether the files were read, and begin it."""
        if files in self._digests:
            return True
        reading = self._reading.get(files)
        if reading is None:
            self._reading[files] = self._reader.submit(digest_of, files)
        elif reading.done():
            while len(self._digests) >= MAX_DIGESTS:
                del self._digests[next(iter(self._digests))]
            self._digests[files] = self._reading.pop(files).result()
            return True
        return False

    def close(self) -> None:
        """End the thread."""
        self._reader.shutdown(wait=False, cancel_futures=True)
