"""Records of requests: why the first missing block was missing, and what a tenant missed in all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dataplane.core.engines.requests import RequestRecords
from dataplane.core.pool.removals import Removals
from dataplane.protocol.codes import Code
from dataplane.protocol.control.records import QuotaSpec
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.engine import ReportRequest, RequestReported
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine, refused

PAGE = 4096
CHAIN = make.keys(4)
Bystander = Callable[[Bench, BenchEngine], object]


def report(bench: Bench, engine: BenchEngine, **fields: Any) -> RequestReported:
    message = {
        "id": 1, "request": "r", "tenant": "a", "prompt_tokens": 1030, "engine_tokens": 0, "loaded_tokens": {},
        "missed_tokens": 1024, "key": CHAIN[0], **fields,
    }  # fmt: skip
    return bench.node.report_request(engine.client, ReportRequest(**message), bench.now)


def stored(bench: Bench, engine: BenchEngine) -> object:
    return engine.store(CHAIN, PAGE, tenant="a")


def evicted(bench: Bench, engine: BenchEngine) -> object:
    stored(bench, engine)
    return engine.store(make.keys(8, "new"), PAGE, tenant="a")


def invalidated(bench: Bench, engine: BenchEngine) -> object:
    stored(bench, engine)
    begun = bench.node.invalidate(Scope(tenant="a"), bench.now)
    bench.pass_time(0.1, 3)
    return begun


def over_limit(bench: Bench, engine: BenchEngine) -> object:
    bench.apply(make.shares(QuotaSpec("a", 0, on_exceed="reject")))
    return stored(bench, engine)


def elsewhere(bench: Bench, engine: BenchEngine) -> object:
    return bench.attach(make.space(dtype="fp8", world_size=2)).store(CHAIN, PAGE, tenant="a")


@pytest.mark.parametrize(
    ("before", "fields", "reason", "cause"),
    [
        pytest.param(lambda *_: None, {}, "never_stored", "", id="never_stored"),
        pytest.param(evicted, {}, "evicted", "room", id="evicted"),
        pytest.param(invalidated, {}, "invalidated", "invalidated", id="invalidated"),
        pytest.param(over_limit, {}, "refused", "over_limit", id="refused"),
        pytest.param(elsewhere, {}, "other_space", "dtype, world_size", id="other_space"),
        pytest.param(stored, {"key": make.key("lora"), "bare_key": CHAIN[0]}, "other_space", "adapter", id="adapter"),
        pytest.param(lambda _, engine: engine.reserve(CHAIN, PAGE), {}, "being_stored", "", id="being_stored"),
        pytest.param(evicted, {"reason": "load_failed"}, "load_failed", "", id="known_to_the_engine"),
        pytest.param(evicted, {"missed_tokens": 0, "key": b""}, "", "", id="nothing_is_missing"),
    ],
)
def test_the_first_missing_block_has_a_reason(
    before: Bystander, fields: dict[str, Any], reason: str, cause: str
) -> None:
    bench = Bench(8 * PAGE)
    engine = bench.attach(make.space())
    before(bench, engine)
    answer = report(bench, engine, **fields)
    assert (answer.reason, answer.cause) == (reason, cause)
    assert bool(answer.at) == (reason in ("evicted", "invalidated", "refused"))
    assert answer.at <= bench.now
    missed = {reason: 1024} if reason else {}
    assert ([each.missed_tokens for each in bench.node.pool.tenants.stats(bench.now)[0] if each.tenant == "a"] or [{}])[
        0
    ] == missed
    (record,) = bench.node.requests.find("r")
    assert (record.reason, record.cause, record.cause_at) == (answer.reason, answer.cause, answer.at)


def test_a_later_report_of_a_request_replaces_the_first_one_and_counts_what_it_missed_more() -> None:
    bench = Bench(8 * PAGE)
    engine = bench.attach(make.space())
    report(bench, engine, request="cmpl-1-0-abc", loaded_tokens={"disk": 768}, missed_tokens=256)
    report(bench, engine, request="cmpl-1-0-abc", missed_tokens=1024, key=b"", reason="load_failed")
    report(bench, engine, request="cmpl-10-0-abc", tenant="b")
    (found,) = bench.node.requests.find("cmpl-1")
    assert (found.request, found.missed_tokens, found.reason) == ("cmpl-1-0-abc", 1024, "load_failed")
    assert bench.tenant("a").missed_tokens == {"never_stored": 256, "load_failed": 768}
    assert bench.node.requests.find("cmpl-") == []


def test_a_request_with_several_answers_is_found_by_its_id() -> None:
    """vLLM computes a request with `n` above 1 as n requests, `0_cmpl-1-0-abc` and so on."""
    bench = Bench(8 * PAGE)
    engine = bench.attach(make.space())
    for name in ("0_cmpl-1-0-abc", "1_cmpl-1-0-abc", "x_cmpl-1-0-abc", "0_cmpl-10-0-abc", "2_", "7_1"):
        report(bench, engine, request=name)
    assert [each.request for each in bench.node.requests.find("cmpl-1")] == ["1_cmpl-1-0-abc", "0_cmpl-1-0-abc"]
    assert [each.request for each in bench.node.requests.find("0_cmpl-1")] == ["0_cmpl-1-0-abc"]
    assert [each.request for each in bench.node.requests.find("2_")] == ["2_"]


def test_records_and_removals_are_bounded() -> None:
    bench = Bench(8 * PAGE)
    engine = bench.attach(make.space())
    bench.node.requests = RequestRecords(bench.node.pool, max_records=2)
    for number in range(3):
        report(bench, engine, request=f"r{number}")
    assert [len(bench.node.requests.find(f"r{number}")) for number in range(3)] == [0, 1, 1]
    removals, gone = Removals(places=4), make.keys(64, "gone")
    removals.note_keys(gone, 3, "room", 5.0)
    remembered = [each for each in gone if removals.of(each, 3)]
    assert 1 <= len(remembered) <= 4
    assert all(removals.of(each, 3) == ("evicted", "room", 5.0) and not removals.of(each, 4) for each in remembered)


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"request": ""}, Code.BAD_FIELD, "request"),
        ({"request": "r" * 257}, Code.BAD_FIELD, "request"),
        ({"tenant": "a/b"}, Code.BAD_SALT, None),
        ({"reason": "bored"}, Code.BAD_FIELD, "reason"),
        ({"key": b"short"}, Code.BAD_KEYS, "key"),
        ({"bare_key": bytes(33)}, Code.BAD_KEYS, "bare_key"),
        ({"loaded_tokens": {"tape": 1}}, Code.BAD_FIELD, "loaded_tokens"),
        ({"loaded_tokens": {"disk": -1}}, Code.BAD_FIELD, "loaded_tokens.disk"),
        ({"missed_tokens": 1 << 62}, Code.BAD_FIELD, "missed_tokens"),
    ],
)
def test_a_wrong_report_is_refused_with_its_field(fields: dict[str, Any], code: Code, field: str | None) -> None:
    bench = Bench(8 * PAGE)
    engine = bench.attach(make.space())
    with refused(code, field):
        report(bench, engine, **fields)
    assert bench.node.requests.find("r") == []
