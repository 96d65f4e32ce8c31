"""Files of the state directory that a crash or a faulty disk left: what is read is what was written, or nothing.

Each file is cut at every length, has each of its bytes changed, and is replaced by another file. Its reader returns the
value that was written, or none, and says which file it does not use; it raises nothing but an error of the settings.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from structlog.testing import capture_logs

from dataplane import membership
from dataplane.base.settings import Common, SettingsError, with_defaults
from dataplane.core.tiering.invalidations import Tombstone
from dataplane.gateways.lmcache.handlers import sessions
from dataplane.gateways.lmcache.handlers.pending_requests import PendingHead, PendingRequests
from dataplane.gateways.lmcache.wire.messages import EngineContext
from dataplane.gateways.lmcache.workers.registrations import RegisteredWorker
from dataplane.gateways.lmcache.workers.registry import Registry
from dataplane.membership import JoinedFleet
from dataplane.protocol.control.snapshots import Snapshot, digest_of
from dataplane.protocol.join import url_fault
from dataplane.protocol.spaces import Space
from dataplane.recovery import record
from dataplane.recovery.record import CacheRecord
from dataplane.recovery.state import SavedSnapshot, StateDirectory
from dataplane.settings import DataPlaneSettings, DataPlaneTable, joined_file
from dataplane.tiering import known_spaces, tombstones
from dataplane.tiering.known_spaces import KnownSpaces
from dataplane.tiering.tombstones import UNKNOWN, TombstoneFile
from dataplane.tiers.disk import superblock
from dataplane.tiers.disk.superblock import Superblock
from dataplane.tiers.tier import TierError
from tests.dataplane import factories as make

FOREIGN = (
    b"",
    b"\0" * 64,
    b"\xff" * 300,
    b"{}",
    b"null",
    b'{"blocks":-5}',
    b"[[[[",
    b"[" * 5000,
    b"\x91" * 5000,
    b"LARDERSN1\n",
    b"#!/bin/sh\n",
)


@dataclass
class Kind:
    """A file, and how it is written and read."""

    write: Callable[[Path], Any]
    """Writes the file, and returns its value."""
    file: Callable[[Path], Path]
    read: Callable[[Path], Any]
    nothing: Any
    guarded: bool
    """Whether a digest protects it, so that no damage is read as another value."""
    logged: bool = True


def _write_snapshot(folder: Path) -> SavedSnapshot:
    body = msgspec.msgpack.encode([])
    saved = SavedSnapshot(Snapshot("quotas", "store", 7, "n", digest_of(body), body), {"d": b"keys"}, {"pin": 8.5})
    state = StateDirectory(folder)
    state.lock()
    state.save_snapshot("quotas", saved)
    state.close()
    return saved


def _write_registration(folder: Path) -> list[RegisteredWorker]:
    engine = EngineContext(1, "llama", 1, 16, 2, 64, "bf16", use_mla=False)
    worker = RegisteredWorker(1, 10, 20, 3, 4, engine=engine)
    Registry(folder).save(worker)
    return [worker]


def _write_fleet(folder: Path) -> JoinedFleet:
    keys = [zmq.curve_keypair()[0].decode() for _ in range(2)]
    fleet = JoinedFleet("node", keys[0], ["tcp://10.0.0.1:8471"], keys[1:])
    joined_file(str(folder)).write_bytes(msgspec.json.encode(fleet))
    return fleet


def _read_fleet(folder: Path) -> JoinedFleet | SettingsError | None:
    """Check what a joined node is going to use."""
    common = with_defaults(Common(state_dir=str(folder)), {})
    try:
        fleet = membership._fleet(DataPlaneSettings(common, DataPlaneTable()))
    except SettingsError as error:
        return None if str(joined_file(str(folder))) in str(error) else error
    assert fleet is not None
    assert not any(map(url_fault, fleet.addresses)), fleet
    return fleet


def _write_record(folder: Path) -> CacheRecord:
    written = CacheRecord(5, 4096, 17.5, "boot")
    record.save(folder, written)
    return written


def _write_results(folder: Path) -> dict[tuple[bytes, str], int]:
    results = {(b"scheduler", "request"): 3}
    sessions.save_results(folder, results)
    return results


def _write_pending(folder: Path) -> list[PendingHead]:
    pending = PendingRequests(folder)
    head = PendingHead(7, b"uid", b"lookup", None)
    pending.begin(head)
    pending.close()
    return [head]


def _write_tombstones(folder: Path) -> dict[str, list[Tombstone]]:
    file = TombstoneFile(folder)
    file.of("disk")
    file.add(Tombstone(before=7 << 40, tenant="acme", keys=frozenset([b"k" * 32])))
    return _read_tombstones(folder)


def _read_tombstones(folder: Path) -> dict[str, list[Tombstone]]:
    """Return the tombstones; {} if one covers everything in all tiers, because the file is not used."""
    lists = TombstoneFile(folder)._lists
    return {} if UNKNOWN in lists and lists[UNKNOWN][0].tenant is None else lists


def _write_spaces(folder: Path) -> dict[bytes, Space]:
    space = make.space()
    KnownSpaces(folder, lambda work, done: work()).add(bytes.fromhex(space.identity()), space)
    return _read_spaces(folder)


def _read_spaces(folder: Path) -> dict[bytes, Space]:
    return KnownSpaces(folder, lambda work, done: work()).spaces


def _write_superblock(folder: Path) -> Superblock | TierError | None:
    superblock._write(folder, Superblock(superblock.MAGIC, superblock.VERSION, "ab" * 16, "n", "cd" * 16, 1 << 20))
    return _read_superblock(folder)


def _read_superblock(folder: Path) -> Superblock | TierError | None:
    try:
        return superblock.read_superblock(folder)
    except TierError as error:
        return None if str(folder) in str(error) else error


KINDS = {
    "tombstones": Kind(_write_tombstones, lambda folder: folder / tombstones.FILE, _read_tombstones, {}, guarded=True),
    "spaces": Kind(_write_spaces, lambda folder: folder / known_spaces.FILE, _read_spaces, {}, guarded=True),
    "superblock": Kind(
        _write_superblock,
        lambda folder: folder / superblock.SUPERBLOCK,
        _read_superblock,
        None,
        guarded=False,
        logged=False,
    ),
    "snapshot": Kind(
        _write_snapshot,
        lambda folder: folder / "quotas.snapshot",
        lambda folder: StateDirectory(folder).load("quotas"),
        None,
        guarded=True,
    ),
    "registration": Kind(
        _write_registration,
        lambda folder: next(path for path in folder.iterdir() if path.suffix not in (".corrupt", ".new")),
        lambda folder: list(Registry(folder).saved()),
        [],
        guarded=True,
    ),
    "fleet": Kind(
        _write_fleet, lambda folder: joined_file(str(folder)), _read_fleet, None, guarded=False, logged=False
    ),
    "record": Kind(_write_record, lambda folder: folder / "cache.json", record.load, None, guarded=False, logged=False),
    "results": Kind(
        _write_results, lambda folder: folder / sessions.RESULTS, sessions.load_results, {}, guarded=False, logged=False
    ),
    "pending": Kind(
        _write_pending,
        lambda folder: next(folder.iterdir()),
        lambda folder: PendingRequests(folder).inherited,
        [],
        guarded=False,
        logged=False,
    ),
}


def damaged(data: bytes) -> Iterator[bytes]:
    """Yield each truncation, changes of each byte, and other files."""
    chance = random.Random(41)
    lengths = range(len(data)) if len(data) < 2000 else sorted(chance.sample(range(len(data)), 300))
    for at in lengths:
        yield data[:at]
        yield data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
    yield data + b"\0"
    yield from FOREIGN


@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_file_is_read_as_it_was_written_or_not_at_all(tmp_path: Path, name: str) -> None:
    kind = KINDS[name]
    tmp_path.chmod(0o700)
    written = kind.write(tmp_path)
    path = kind.file(tmp_path)
    data = path.read_bytes()
    assert kind.read(tmp_path) == written
    for damage in damaged(data):
        path.write_bytes(damage)
        with capture_logs() as lines:
            value = kind.read(tmp_path)
        if kind.guarded:
            assert value == kind.nothing, damage[:80]
        elif value != kind.nothing:
            assert type(value) is type(written), damage[:80]
        if kind.logged:
            assert str(path) in [line.get("file", line.get("path")) for line in lines], (damage[:80], lines)
        for aside in tmp_path.glob("*.corrupt"):
            aside.unlink()
