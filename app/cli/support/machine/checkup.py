"""The checks of this machine for `larder doctor`. A check returns its result; it changes nothing and raises nothing."""

import errno
import os
import platform
import pwd
import resource
import shlex
import shutil
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import msgspec

from app.cli.support.machine.left_memory import left_memory
from app.settings import Settings, resolved
from dataplane.base.addresses import host_and_port
from dataplane.base.units import format_size
from dataplane.holding.folder import is_locked
from dataplane.protocol import barrier
from dataplane.protocol.join import JOINED_FILE

State = Literal["ok", "warning", "failure"]
HUGE_BYTES = 2 << 20
GIB = 1 << 30
SHARED_MEMORY = Path("/dev/shm")
SYSTEMD = Path("/run/systemd")
LOGIND = Path("/etc/systemd/logind.conf")
LINGER = Path("/var/lib/systemd/linger")
FIRST_USER = 1000
"""Smallest uid of the users whose files systemd removes at logout."""
MIN_FILES = 4096
MIN_SHM_BYTES = 64 << 20
MIN_DISK_BYTES = 256 << 20
MIN_SQLITE = (3, 35, 0)
CLOCK_WAIT_S = 0.2
CLOCK_STEP_S = 0.05
_RELEASED = 1_760_000_000  # an earlier time is wrong
_LIBRARIES = ("msgspec", "numpy", "pyzmq", "sqlalchemy", "alembic", "litestar", "uvicorn", "torch")


@dataclass(frozen=True)
class CheckResult:
    """Result of one check. `fix` says what to do; empty if nothing is needed."""

    name: str
    state: State
    message: str
    fix: str = ""


def checks(settings: Settings, table: dict[str, Any], pool_bytes: int, *, runs: bool) -> Iterator[CheckResult]:
    """Yield the results of all checks. `table` holds the effective settings of the data plane; `runs` says whether a
    Larder uses this state directory now."""
    yield _kernel()
    yield _versions()
    yield _files(int(table.get("max_clients", 1024)))
    yield _memory(pool_bytes, huge=bool(table.get("huge_pages")), runs=runs)
    yield _shared_memory(_gateway_bytes(settings, table, pool_bytes), configured=bool(table.get("lmcache_pool_bytes")))
    yield from _gateway_memory(settings, str(table.get("lmcache_shm_name") or ""), runs=runs)
    yield from _left_behind()
    yield _huge_pages(pool_bytes, requested=bool(table.get("huge_pages")), runs=runs)
    yield _locked_memory(pool_bytes, requested=bool(table.get("mlock")))
    yield _port(settings, runs=runs)
    yield _state_directory(settings.state_dir)
    yield from _fleet(settings.state_dir)
    yield _clock()
    yield _gpu()


def _left_behind() -> Iterator[CheckResult]:
    """Report shared memory of this user's data planes that ended without removing it."""
    if segments := left_memory(SHARED_MEMORY):
        message = f"dead data planes left {format_size(sum(segments.values()))} in {SHARED_MEMORY}"
        yield CheckResult("memory left behind", "warning", message, shlex.join(["rm", *map(str, segments)]))


def runs_here(state_dir: Path) -> bool:
    """Return whether a `larder up` holds the lock of the state directory."""
    with suppress(OSError):
        return is_locked(state_dir / "up.lock")
    return False


def _kernel() -> CheckResult:
    name = "kernel"
    try:
        barrier.check_machine()
    except barrier.UnsupportedMachine as error:
        return CheckResult(name, "failure", str(error), "run Larder on an x86-64 machine")
    missing = []
    try:
        os.close(os.memfd_create("larder-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    except OSError:
        missing.append("memfd_create")
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        missing.append("pidfd_open")
    release = f"Linux {platform.release()}"
    if missing:
        return CheckResult(
            name,
            "failure",
            f"{release} lacks or forbids {' and '.join(missing)}",
            "use Linux 5.4 or newer, and allow these calls in the container's seccomp profile",
        )
    if not barrier.supported():
        return CheckResult(
            name,
            "warning",
            f"{release} lacks or forbids membarrier: leases go by message, which is slower",
            "use Linux 4.16 or newer, and allow membarrier in the container's seccomp profile",
        )
    return CheckResult(name, "ok", f"{release} with memfd, pidfd and membarrier")


def _versions() -> CheckResult:
    name = "versions"
    python = platform.python_version()
    installed, missing = [], []
    for library in _LIBRARIES:
        try:
            installed.append(f"{library} {metadata.version(library)}")
        except metadata.PackageNotFoundError:
            missing.append(library)
    if missing:
        return CheckResult(
            name, "failure", f"not installed: {', '.join(missing)}", "install Larder again with pip or uv"
        )
    if sqlite3.sqlite_version_info < MIN_SQLITE:
        return CheckResult(
            name, "failure", f"SQLite {sqlite3.sqlite_version}, expected 3.35 or newer", "use a newer Python build"
        )
    return CheckResult(name, "ok", f"Python {python}, SQLite {sqlite3.sqlite_version}, {', '.join(installed)}")


def _files(max_clients: int) -> CheckResult:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A client takes a socket, an area and a pidfd; the rest is for segments, the API and its database.
    requested = max(MIN_FILES, 3 * max_clients + 1024)
    if soft == resource.RLIM_INFINITY or soft >= requested:
        return CheckResult("open files", "ok", f"{soft} allowed")
    return CheckResult(
        "open files",
        "warning",
        f"{soft} allowed (at most {hard}); {requested} are enough for {max_clients} engine processes",
        f"ulimit -n {requested}, LimitNOFILE={requested} of systemd, or --ulimit nofile={requested} of Docker",
    )


def _memory(pool_bytes: int, *, huge: bool, runs: bool) -> CheckResult:
    available, total = _meminfo("MemAvailable"), _meminfo("MemTotal")
    if available is None or total is None:
        return CheckResult("memory", "warning", "/proc/meminfo cannot be read", "mount /proc")
    message = f"the pool takes {format_size(pool_bytes)}; {format_size(available)} of {format_size(total)} are free"
    if pool_bytes > total or (pool_bytes > available and not huge and not runs):
        # No space, which would end the value in a shell, and no separator, which is not part of a size.
        half = format_size(available // 2 // HUGE_BYTES * HUGE_BYTES).replace(" ", "").replace(",", "")
        return CheckResult("memory", "failure", message, f"LARDER_POOL_BYTES={half} or less, or free some memory")
    return CheckResult("memory", "ok", message)


def _gateway_bytes(settings: Settings, table: dict[str, Any], pool_bytes: int) -> int:
    """Return the bytes that clients of the LMCache gateway map; 0 without the gateway."""
    if settings.common.lmcache_port == 0:
        return 0
    return int(table.get("lmcache_pool_bytes") or pool_bytes)


def _shared_memory(gateway_bytes: int, *, configured: bool) -> CheckResult:
    """Check the size of /dev/shm. The LMCache gateway needs `gateway_bytes` of it; less is a failure only if that size
    was configured (`configured`)."""
    try:
        filesystem = os.statvfs("/dev/shm")
    except OSError as error:
        return CheckResult("/dev/shm", "warning", f"cannot be read: {error.strerror}", "mount a tmpfs there")
    size = filesystem.f_blocks * filesystem.f_frsize
    message = f"{format_size(size)}; it does not contain Larder's pool, but buffers of engines"
    if gateway_bytes:
        message = (
            f"{format_size(size)}; it contains buffers of engines and the memory that LMCache clients map, up to "
            f"{format_size(gateway_bytes)} of the pool"
        )
    if gateway_bytes > size and configured:
        return CheckResult("/dev/shm", "failure", message, "a larger tmpfs, or less dataplane.lmcache_pool_bytes")
    if size < max(MIN_SHM_BYTES, gateway_bytes):
        fix = f"--shm-size={max(1, -(-gateway_bytes // GIB))}g of Docker, or a larger tmpfs"
        if gateway_bytes:
            fix += "; LARDER_LMCACHE_PORT=0 without LMCache clients"
        return CheckResult("/dev/shm", "warning", message, fix)
    return CheckResult("/dev/shm", "ok", message)


def _gateway_memory(settings: Settings, name: str, *, runs: bool) -> Iterator[CheckResult]:
    """Check the name by which LMCache clients open the gateway's memory, and whether systemd may remove it."""
    if settings.common.lmcache_port == 0 or not name:
        return
    path = SHARED_MEMORY / f"lmcache_l1_pool_{name}"
    second_name = path.with_name(f".larder-{path.name}")
    files = [_file_id(file) for file in (path, second_name)]
    subject = "LMCache memory"
    if files[1] is not None and files[0] != files[1]:
        state = "was removed" if files[0] is None else "is another file"
        fix = "larder up puts it back" if files[0] is None else f"move {path} away, and the name is put back"
        yield CheckResult(
            subject,
            "failure",
            f"{path} {state}: new workers cannot map the memory (its backup name is {second_name})",
            fix,
        )
    elif runs and files[0] is None and settings.common.lmcache_port is not None:
        yield CheckResult(
            subject, "failure", f"{path} does not exist: new workers cannot map it", "restart the data plane"
        )
    user = _user_of_a_session()
    if user:
        yield CheckResult(
            subject,
            "warning",
            f"systemd removes the files of {user} in {SHARED_MEMORY} when the last session of {user} ends (RemoveIPC)",
            f"loginctl enable-linger {user}, or RemoveIPC=no in /etc/systemd/logind.conf, or a system user",
        )


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _user_of_a_session() -> str:
    """Return the user of this process if systemd removes the user's shared memory at logout; otherwise an empty
    string."""
    uid = os.geteuid()
    if uid < FIRST_USER or not (SYSTEMD / "system").is_dir():
        return ""
    try:
        user = pwd.getpwuid(uid).pw_name
        files = [LOGIND, *sorted(LOGIND.with_suffix(".conf.d").glob("*.conf"))]
        lines = [line for file in files if file.exists() for line in file.read_text().splitlines()]
    except (KeyError, OSError, UnicodeDecodeError):
        return ""
    values = [line.partition("=")[2].strip() for line in lines if line.strip().startswith("RemoveIPC=")]
    if values and values[-1].lower() in ("no", "false", "0", "off"):
        return ""
    return "" if (LINGER / user).exists() else user


def _huge_pages(pool_bytes: int, *, requested: bool, runs: bool) -> CheckResult:
    free = _meminfo("HugePages_Free", unit=1) or 0
    if not requested:
        return CheckResult("huge pages", "ok", "not requested (dataplane.huge_pages)")
    needed = -(-pool_bytes // HUGE_BYTES)
    message = f"the pool takes {needed} pages of 2 MiB, {free} are free"
    if free >= needed or runs:
        return CheckResult("huge pages", "ok", message)
    total = _meminfo("HugePages_Total", unit=1) or 0
    return CheckResult("huge pages", "failure", message, f"sysctl vm.nr_hugepages={total + needed - free}")


def _locked_memory(pool_bytes: int, *, requested: bool) -> CheckResult:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    shown = "unlimited" if soft == resource.RLIM_INFINITY else format_size(soft)
    if not requested:
        return CheckResult("locked memory", "ok", f"{shown} allowed, not requested (dataplane.mlock)")
    if soft == resource.RLIM_INFINITY or soft >= pool_bytes or os.geteuid() == 0:
        return CheckResult("locked memory", "ok", f"{shown} allowed")
    return CheckResult(
        "locked memory",
        "failure",
        f"{shown} allowed, the pool takes {format_size(pool_bytes)}",
        "ulimit -l unlimited, LimitMEMLOCK=infinity of systemd, or --ulimit memlock=-1 of Docker",
    )


def _port(settings: Settings, *, runs: bool) -> CheckResult:
    host, port = settings.common.http_host, settings.common.http_port
    if port == 0:
        return CheckResult("port", "ok", f"a free one of {host}")
    shown = host_and_port(host, port)
    try:
        family, address = resolved(host, port)
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, OverflowError) as error:
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        if in_use and runs:
            return CheckResult("port", "ok", f"{shown}, taken by the Larder that runs here")
        in_use_text = "is taken by another program, or by a Larder of another state directory"
        reason = in_use_text if in_use else f"cannot be listened on: {error}"
        return CheckResult("port", "failure", f"{shown} {reason}", "LARDER_HTTP_PORT or LARDER_HTTP_HOST")
    return CheckResult("port", "ok", f"{shown} is free")


def _state_directory(folder: Path) -> CheckResult:
    name = "state directory"
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        return CheckResult(name, "failure", f"{existing} is not a folder", "LARDER_STATE_DIR")
    if not os.access(existing, os.W_OK | os.X_OK):
        return CheckResult(
            name, "failure", f"{existing} cannot be written to", "LARDER_STATE_DIR, or its owner and mode"
        )
    free = shutil.disk_usage(existing).free
    if free < MIN_DISK_BYTES:
        return CheckResult(name, "warning", f"{format_size(free)} free on the disk of {existing}", "make room")
    if existing != folder:
        return CheckResult(name, "ok", f"{folder} will be made")
    status = folder.stat()
    if status.st_uid != os.geteuid():
        return CheckResult(
            name, "failure", f"{folder} belongs to uid {status.st_uid}, this is {os.geteuid()}", "chown, or its user"
        )
    if status.st_mode & 0o077:
        mode = f"{status.st_mode & 0o777:o}"
        return CheckResult(
            name, "failure", f"{folder} has mode {mode}: others can reach its sockets", f"chmod 700 {folder}"
        )
    return CheckResult(name, "ok", f"{folder}, {format_size(free)} free")


def _fleet(folder: Path) -> Iterator[CheckResult]:
    """Check whether a data plane of this state directory has joined a fleet, and whether the fleet still accepts it."""
    name, file = "fleet", folder / JOINED_FILE
    try:
        membership = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return
    except OSError as error:
        yield CheckResult(name, "failure", f"{file} cannot be read: {error.strerror}", "its owner and mode")
        return
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        yield CheckResult(name, "failure", f"{file} is not JSON", "remove it and start with a new join token")
        return
    if refused := membership.get("refused"):
        yield CheckResult(
            name,
            "failure",
            f"the management plane no longer knows {membership.get('node')}: {refused}",
            "start the data plane with a new join token (larder nodes token create)",
        )
    else:
        yield CheckResult(name, "ok", f"joined as {membership.get('node')}")


def _clock() -> CheckResult:
    if time.time() < _RELEASED:
        return CheckResult("clock", "failure", f"it is {time.ctime()}, which cannot be", "run an NTP client")
    wall, steady = time.time(), time.monotonic()
    time.sleep(CLOCK_WAIT_S)
    stepped = abs((time.time() - wall) - (time.monotonic() - steady))
    if stepped > CLOCK_STEP_S:
        return CheckResult(
            "clock", "warning", f"it stepped by {stepped:.3f} s just now", "run an NTP client that slews"
        )
    return CheckResult("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))


def _gpu() -> CheckResult:
    program = shutil.which("nvidia-smi")
    if program is None:
        return CheckResult("GPU", "ok", "none seen (no nvidia-smi): engines copy through host memory")
    try:
        listed = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return CheckResult("GPU", "warning", f"nvidia-smi does not answer: {error}", "look at the driver (dmesg)")
    gpus = [line.split(" (UUID")[0] for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    if listed.returncode or not gpus:
        reason = (listed.stdout + listed.stderr).strip().splitlines() or ["it lists none"]
        return CheckResult(
            "GPU", "warning", f"nvidia-smi: {reason[-1][:200]}", "look at the driver, or --gpus of Docker"
        )
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = ""
    if torch.endswith("+cpu"):
        return CheckResult(
            "GPU", "warning", f"{'; '.join(gpus)}, but torch {torch} is built without CUDA", "a CUDA build of torch"
        )
    return CheckResult("GPU", "ok", f"{'; '.join(gpus)}; torch {torch}")


def _meminfo(name: str, unit: int = 1024) -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    values = [line.split()[1] for line in lines if line.startswith(name + ":")]
    return int(values[0]) * unit if values else None
