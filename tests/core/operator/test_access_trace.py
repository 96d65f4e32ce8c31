"""The access trace: requests, whole and in order, within bounds."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dataplane.core.engines import accesses
from dataplane.core.engines.accesses import MAX_RECORDS, AccessTrace
from dataplane.core.spaces import Spaces
from dataplane.protocol.codes import Code
from dataplane.protocol.control.prefixes import MAX_TRACE_PART_BYTES
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.spaces import Space
from dataplane.replay.chains import DerivedChains
from dataplane.replay.trace import TraceRequest, read_trace
from tests.core.tenancy import PAGE, bench_of
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine, refused
from tests.sizes import size
from tests.work import lines_run


def serve(engine: BenchEngine, chain: Sequence[bytes], tenant: str = "", nbytes: int = PAGE) -> int:
    """One request, as an engine makes it: its hits are held until the rest is stored."""
    hits = engine.acquire(chain)
    if hits < len(chain):
        engine.store(chain, nbytes, tenant=tenant)
    engine.release()
    return hits


def serve_in_pieces(engine: BenchEngine, chain: Sequence[bytes], size: int, own: int) -> int:
    """One request of an engine that has the first `own` hits itself, acquires the others and stores the rest, some
    blocks at a time."""
    hits = engine.lookup(chain)
    for first in range(min(own, hits), hits, size):
        engine.acquire(chain[first : min(hits, first + size)])
    for first in range(hits, len(chain), size):
        engine.store(chain[first : first + size], PAGE, parent=chain[first - 1] if first else b"")
    engine.release()
    return hits


def lines_of(bench: Bench, after: int = 0) -> tuple[list[bytes], int]:
    lines, following = bench.node.trace(0.0, after)
    return lines.splitlines(), following


def requests_of(bench: Bench, folder: Path) -> list[TraceRequest]:
    path = folder / "trace.jsonl"
    lines, after = bench.node.trace(0.0, 0)
    while after:
        more, after = bench.node.trace(0.0, after)
        lines += more
    path.write_bytes(lines)
    return read_trace(path)


@pytest.mark.parametrize(
    ("piece", "own", "turns", "pause_s"),
    [(0, 0, 0.3, 0.3), (2, 0, 0.3, 0.3), (100, 0, 0.3, 0.3), (3, 3, 0.3, 31.0), (3, 100, 1.0, 31.0)],
    ids=["whole chains", "two blocks at a time", "what is new", "without the start", "without all hits"],
)
def test_a_recorded_trace_replays_to_the_same_hit_ratio(
    tmp_path: Path, piece: int, own: int, turns: float, pause_s: float
) -> None:
    bench, engine = bench_of(256)
    rng = random.Random(5)
    requested = hit = 0
    chats: list[list[bytes]] = [make.keys(4, number) for number in range(60)]
    count = 110 if piece else size(1500, 500)
    for number in range(count):
        chat = chats[min(59, int(rng.expovariate(0.1)))]
        if len(chat) > 30:
            del chat[4:]
        if rng.random() < turns:
            chat += make.keys(2, ("turn", number))
        hit += serve_in_pieces(engine, chat, piece, own) if piece else serve(engine, chat)
        requested += len(chat)
        bench.pass_time(pause_s)
    recorded = requests_of(bench, tmp_path)
    assert len(recorded) == count
    assert sum(len(request.hash_ids) for request in recorded) == requested
    again, other = bench_of(256)
    chains = DerivedChains()
    replayed = 0
    for request in recorded:
        keys = [row.tobytes() for row in chains.keys("", request.hash_ids)]
        replayed += serve(other, keys)
        again.pass_time(0.3)
    assert hit / requested == replayed / requested
    assert 0.2 < hit / requested < 0.9, "the comparison says something"


GROUP = Space(model="m", block_bytes=PAGE)


@pytest.mark.parametrize(
    "others",
    [
        [Space(model="m", world_size=4, rank=rank, block_bytes=PAGE) for rank in (1, 2, 3)],
        [Space(model="m", world_size=4, rank=rank, block_bytes=2 * PAGE, layout=f"{rank}") for rank in (1, 2, 3)],
        [Space(model="m", pipeline_stage=1, block_bytes=PAGE)],
        [Space(model="m", kv_group=number, block_bytes=number * PAGE, layout=f"{number}") for number in (1, 2)],
        [Space(model="m", kv_group=1)],
    ],
)
def test_the_size_of_a_block_is_what_a_chunk_takes_in_all_spaces_of_a_request(others: list[Space]) -> None:
    first = msgspec.structs.replace(others[0], rank=0, pipeline_stage=0, kv_group=0, block_bytes=PAGE, layout="")
    bench, engine = bench_of(8192, spaces=(first,))
    workers = [bench.attach(other) for other in others]
    bench.attach(*(msgspec.structs.replace(each, model="other", block_bytes=PAGE) for each in (first, *others)))
    bench.attach(*(msgspec.structs.replace(each, layout="another engine") for each in (first, *others)))
    chain = make.keys(4)
    engine.store(chain, PAGE)
    for worker, other in zip(workers, others, strict=True):
        worker.store(chain, other.block_bytes or PAGE)
    (line,) = lines_of(bench)[0]
    assert msgspec.json.decode(line)["block_bytes"] == bench.node.pool.used_bytes // len(chain)


@pytest.mark.parametrize("forgotten", [False, True])
@pytest.mark.parametrize("place", [{"kv_group": 1}, {"pipeline_stage": 1}])
def test_spaces_of_engines_that_are_gone_do_not_add_to_the_size_of_a_block(
    place: dict[str, Any], forgotten: bool
) -> None:
    bench = Bench(64 * PAGE)
    earlier = [
        bench.attach(Space(model="m", layout=name, block_bytes=PAGE, **at)) for name, at in (("a", {}), ("b", place))
    ]
    for engine in earlier:
        engine.store(make.keys(3), PAGE)
    assert [msgspec.json.decode(line)["block_bytes"] for line in lines_of(bench)[0]] == [2 * PAGE]
    for engine in earlier:
        engine.detach_cleanly()
    if forgotten:
        bench.node.clear(bench.now, permanent=True)
        bench.pass_time(1.0, times=3)
        assert not bench.node.pool.spaces.by_number
    now = bench.attach(Space(model="m", layout="c", block_bytes=PAGE))
    now.store(make.keys(3), PAGE)
    assert [msgspec.json.decode(line)["block_bytes"] for line in lines_of(bench)[0]] == [2 * PAGE, PAGE]


def test_a_trace_of_several_ranks_replays_to_the_same_hit_ratio_in_the_same_bytes(tmp_path: Path) -> None:
    large, pages = 32 * PAGE, 4096
    bench, leading = bench_of(pages, spaces=(Space(model="m", world_size=2, block_bytes=large),))
    follower = bench.attach(Space(model="m", world_size=2, rank=1, block_bytes=large))
    rng = random.Random(3)
    hits = 0
    for _ in range(300):
        chain = make.keys(4, int(rng.expovariate(0.05)))
        hits += serve(leading, chain, nbytes=large)
        follower.store(chain, large)
        bench.pass_time(0.3)
    recorded = requests_of(bench, tmp_path)
    again, other = bench_of(pages)
    chains = DerivedChains()
    replayed = 0
    for request in recorded:
        assert request.block_bytes is not None
        keys = [row.tobytes() for row in chains.keys("", request.hash_ids)]
        replayed += serve(other, keys, nbytes=request.block_bytes)
        again.pass_time(0.3)
    assert hits == replayed
    assert 0.2 < hits / 1200 < 0.9, "the comparison says something"


@pytest.mark.parametrize(
    "other", [{"model": "n"}, {"revision": "r"}, {"dtype": "d"}, {"layout": "l"}, {"world_size": 2}]
)
def test_only_blocks_of_the_same_space_have_the_same_numbers(other: dict[str, Any]) -> None:
    bench, one = bench_of(64, spaces=(GROUP,))
    chain = make.keys(3)
    for engine in (one, bench.attach(GROUP), bench.attach(msgspec.structs.replace(GROUP, **other))):
        engine.store(chain, PAGE)
    ids = [set(msgspec.json.decode(line)["hash_ids"]) for line in lines_of(bench)[0]]
    assert ids[0] == ids[1]
    assert not ids[0] & ids[2]


def test_a_request_is_one_record_however_many_engines_there_are(tmp_path: Path) -> None:
    bench, one = bench_of(256)
    two = bench.attach(make.space())
    both = [(one, make.keys(6, "one")), (two, make.keys(6, "two"))]
    for engine, chain in both:
        engine.store(chain[:4], PAGE)
    for engine, chain in both:
        engine.acquire(chain)
    bench.pass_time(0.05)
    for engine, chain in both:
        engine.store(chain, PAGE)
    recorded = requests_of(bench, tmp_path)
    assert [len(request.hash_ids) for request in recorded] == [4, 4, 6, 6]
    hits = [msgspec.json.decode(line)["hit_blocks"] for line in lines_of(bench)[0]]
    assert hits == [0, 0, 4, 4]


def test_requests_that_an_engine_stores_in_turns_are_one_record_each(tmp_path: Path) -> None:
    bench, engine = bench_of(256)
    chains = [make.keys(6, number) for number in range(8)]
    for first in range(0, 6, 2):
        for chain in chains:
            engine.store(chain[first : first + 2], PAGE, parent=chain[first - 1] if first else b"")
    assert [len(request.hash_ids) for request in requests_of(bench, tmp_path)] == [6] * 8
    engine.store(make.keys(1), PAGE, parent=chains[0][-1])
    bench.pass_time(31)
    engine.store(make.keys(1), PAGE, parent=chains[1][-1])
    engine.store(make.keys(2, "behind nothing"), PAGE, parent=make.keys(1, "unknown")[0])
    lines = [msgspec.json.decode(line) for line in lines_of(bench)[0]]
    sizes = [(len(line["hash_ids"]), line["hit_blocks"]) for line in lines]
    assert sizes == [(6, 0)] * 7 + [(7, 0), (7, 7), (2, 0)], "a late piece is a request of its own"


def test_chunks_that_a_request_generates_are_pieces_of_it() -> None:
    bench, engine = bench_of(256)
    for number in range(4):
        chain = make.keys(9, number)
        engine.store(chain[:4], PAGE)
        for first in range(4, 9):
            bench.pass_time(25)
            engine.store(chain[first : first + 1], PAGE, parent=chain[first - 1])
    lines = [msgspec.json.decode(line) for line in lines_of(bench)[0]]
    assert [(len(line["hash_ids"]), line["hit_blocks"]) for line in lines] == [(9, 0)] * 4


def test_requests_behind_one_prefix_are_one_record_each() -> None:
    bench, engine = bench_of(256)
    system = make.keys(4, "system")
    engine.store(system, PAGE)
    for _ in range(3):
        engine.acquire(system)
    for number in range(4):
        engine.store(make.keys(2, number), PAGE, parent=system[-1])
    lines = [msgspec.json.decode(line) for line in lines_of(bench)[0]]
    assert [(len(line["hash_ids"]), line["hit_blocks"]) for line in lines] == [(6, 4)] * 3 + [(6, 0)]


@pytest.mark.parametrize("in_pieces", [False, True])
def test_requests_that_hit_all_remain_when_later_ones_store_behind_them(in_pieces: bool) -> None:
    bench, engine = bench_of(256)
    system = make.keys(4, "system")
    engine.store(system, PAGE)
    for _ in range(5):
        engine.acquire(system)
        engine.release()
        bench.pass_time(0.3)
    bench.pass_time(61)
    for number in range(5):
        new = make.keys(1, number)
        if in_pieces:  # the engine has the rest itself
            engine.store(new, PAGE, parent=system[-1])
        else:
            engine.store([*system, *new], PAGE)
        bench.pass_time(0.3)
    lines = [msgspec.json.decode(line) for line in lines_of(bench)[0]]
    sizes = [(len(line["hash_ids"]), line["hit_blocks"]) for line in lines]
    assert sizes == [(4, 0)] + [(4, 4)] * 5 + [(5, 4)] * 5


@pytest.mark.parametrize("at", [0, 2])
def test_a_parent_among_the_keys_of_its_request_is_refused(at: int) -> None:
    _, engine = bench_of(64)
    chain = make.keys(3)
    with refused(Code.BAD_KEYS, "parent"):
        engine.reserve(chain, PAGE, parent=chain[at])


def test_blocks_that_name_each_other_as_parents_do_not_grow_a_record_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accesses, "MAX_CONTINUED_BLOCKS", 16)
    bench, engine = bench_of(64)
    one, two = make.keys(2)
    engine.store([one], PAGE, parent=two)
    engine.store([two], PAGE, parent=one)
    for _ in range(50):
        engine.acquire([one])
        engine.acquire([two])
        engine.release()
        bench.pass_time(0.05)
    lines = [msgspec.json.decode(line) for line in lines_of(bench)[0]]
    assert 5 < len(lines) <= 20
    assert max(len(line["hash_ids"]) for line in lines) <= 20


def test_blocks_that_another_engine_is_writing_are_misses() -> None:
    bench, one = bench_of(256)
    two = bench.attach(make.space())
    chain = make.keys(6)
    one.store(chain[:2], PAGE)
    one.reserve(chain, PAGE)
    two.reserve(chain, PAGE)
    assert [msgspec.json.decode(line)["hit_blocks"] for line in lines_of(bench)[0]] == [0, 2, 2]


def test_pages_follow_each_other_without_gap_or_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, engine = bench_of(512)
    for number in range(40):
        chain = make.keys(2 + number % 5, number % 12)
        serve(engine, [*chain, *make.keys(2, ("tail", number))])
        bench.pass_time(1)
    whole, end = lines_of(bench)
    assert (len(whole), end) == (40, 0)
    monkeypatch.setattr("dataplane.core.node.MAX_TRACE_PART_BYTES", 700)
    pages, after = [], 0
    while True:
        lines, after = lines_of(bench, after)
        pages += lines
        if not after:
            break
    assert pages == whole
    assert len(lines) < 40
    assert MAX_TRACE_PART_BYTES > 700


def test_only_later_requests_are_returned_with_since() -> None:
    bench, engine = bench_of(512)
    for number in range(10):
        serve(engine, make.keys(2, number))
        bench.pass_time(1)
    assert len(bench.node.trace(bench.now - 3.5, 0)[0].splitlines()) == 3


def test_the_youngest_requests_are_kept_whole() -> None:
    bench, _ = bench_of(64)
    tenant = bench.node.pool.tenants.get("a")
    trace = AccessTrace(bench.now, 100)
    sent: list[list[int]] = []
    for number in range(50):
        words = pack_keys(make.keys(1 + number % 7, number))[:, 0]
        joined = None
        if number % 3:  # the next piece of the request before
            parent = make.keys(1 + (number - 1) % 7, number - 1)[-1]
            joined = trace.continued(1, 1, parent, bench.now + number, acquired=False)
            assert joined == number - 1
        trace.record(1, tenant, 1, PAGE, words, 0, bench.now + number, joined)
        marks = (words >> 11).tolist()
        sent.append(sent.pop() + marks if number % 3 else marks)
    lines, end = trace.part(0.0, 0, 1 << 20, Spaces())
    got = [msgspec.json.decode(line)["hash_ids"] for line in lines.splitlines()]
    assert end == 0
    assert got == sent[-len(got) :]
    assert 82 <= sum(map(len, got)) <= 100, "a request is lost as a whole"


def test_entries_older_than_an_hour_are_forgotten() -> None:
    bench, engine = bench_of(64)
    serve(engine, make.keys(2, "old"))
    bench.pass_time(3601)
    serve(engine, make.keys(3, "new"))
    assert [len(msgspec.json.decode(line)["hash_ids"]) for line in lines_of(bench)[0]] == [3]


def test_a_line_is_a_mooncake_request_with_fields_of_larder() -> None:
    bench, engine = bench_of(64)
    serve(engine, make.keys(2), "team-a")
    line = msgspec.json.decode(lines_of(bench)[0][0])
    assert line["tenant"] == "team-a"
    assert (line["model"], line["block_bytes"], line["hit_blocks"]) == (make.MODEL, PAGE, 0)
    assert all(0 <= mark < 1 << 53 for mark in line["hash_ids"]), "any JSON reader keeps them whole"


# ---- bounds


def full() -> tuple[AccessTrace, float]:
    bench, _ = bench_of(64)
    trace = AccessTrace(bench.now, 2 * MAX_RECORDS)
    words = pack_keys(make.keys(1))[:, 0]
    tenant = bench.node.pool.tenants.get("a")
    for _ in range(50_000):
        trace.record(1, tenant, 1, PAGE, words, 0, bench.now)
    later = bench.now + 4000
    assert lines_run(lambda: trace.record(1, tenant, 1, PAGE, words, 0, later)) < 10_000
    return trace, later


def test_old_requests_are_not_shown_although_they_are_dropped_bit_by_bit() -> None:
    trace, later = full()
    parts = []
    assert lines_run(lambda: parts.append(trace.part(0.0, 0, 1 << 20, Spaces()))) < 10_000
    ((lines, following),) = parts
    assert following == 0
    assert len(lines.splitlines()) == 1
    assert msgspec.json.decode(lines)["timestamp"] == 4_000_000
    assert trace.part(later + 1, 0, 1 << 20, Spaces()) == (b"", 0)


def test_a_further_piece_does_not_copy_the_chain_before_it() -> None:
    bench, _ = bench_of(8)
    tenant = bench.node.pool.tenants.get("")
    trace = AccessTrace(bench.now, 1 << 17)
    chain = np.arange(60_100, dtype=np.uint64) << np.uint64(11)
    tracemalloc.start()
    try:
        trace.record(1, tenant, 1, PAGE, chain[:60_000], 0, bench.now)
        copies = 0
        for at in range(60_000, 60_100):
            continued = trace.continued(1, 1, chain[at - 1].tobytes(), bench.now, acquired=False)
            assert continued is not None
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            trace.record(1, tenant, 1, PAGE, chain[at : at + 1], 0, bench.now, continued)
            copies += tracemalloc.get_traced_memory()[1] - before > 60_000 * 8 // 4
        assert copies <= 1, "the first further piece makes room for others"
    finally:
        tracemalloc.stop()
    (line,) = trace.part(0.0, 0, 1 << 20, Spaces())[0].splitlines()
    assert msgspec.json.decode(line)["hash_ids"] == list(range(60_100))


@pytest.mark.parametrize("pieces", [1, 2])
def test_the_requests_of_an_hour_take_less_than_40_mb(monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    part = 32  # of the whole trace
    monkeypatch.setattr(accesses, "MAX_RECORDS", records := MAX_RECORDS // part)
    monkeypatch.setattr(accesses, "MAX_ENDS", accesses.MAX_ENDS // part)
    bench, _ = bench_of(8)
    tenant = bench.node.pool.tenants.get("")
    marks = np.arange(4 * records, dtype=np.uint64) << np.uint64(11)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        trace = AccessTrace(bench.now, 4 * records)
        for number, chain in enumerate(marks.reshape(-1, 4)):
            continued, at = None, bench.now + number / records
            for piece in chain.reshape(pieces, -1):
                trace.record(1000, tenant, 1000, PAGE + number, piece, 0, at, continued)
                continued = trace.continued(1000, 1000, piece[-1].tobytes(), at, acquired=False)
        assert (tracemalloc.get_traced_memory()[0] - before) * part < 40_000_000
    finally:
        tracemalloc.stop()
    kept = trace.part(0.0, 0, 1 << 30, Spaces())[0].splitlines()
    assert len(kept) >= records // pieces


def test_a_number_beyond_the_last_request_ends_the_trace() -> None:
    trace, _ = full()
    assert trace.part(0.0, 2**62, 1 << 20, Spaces()) == (b"", 0)


def test_records_that_are_continued_are_not_walked_by_later_pieces() -> None:
    bench, _ = bench_of(64)
    trace = AccessTrace(bench.now, 1 << 16)
    prefix = make.keys(1, "prefix")[0]
    words, piece = pack_keys([prefix])[:, 0], pack_keys(make.keys(1, "piece"))[:, 0]
    tenant = bench.node.pool.tenants.get("a")
    for _ in range(2):  # requests that wait for their pieces at the same time
        for _ in range(3000):
            trace.record(1, tenant, 1, PAGE, words, 1, bench.now, acquired=True)
        for _ in range(3000):
            request = trace.continued(1, 1, prefix, bench.now, acquired=False)
            assert request is not None
            trace.record(1, tenant, 1, PAGE, piece, 0, bench.now, request)
    for _ in range(3000):  # and one after the other
        trace.record(1, tenant, 1, PAGE, words, 1, bench.now, acquired=True)
        request = trace.continued(1, 1, prefix, bench.now, acquired=False)
        trace.record(1, tenant, 1, PAGE, piece, 0, bench.now, request)
    assert lines_run(lambda: trace.continued(1, 1, prefix, bench.now, acquired=False)) < 100
