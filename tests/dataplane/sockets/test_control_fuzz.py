"""Anything may come over the control socket: it is answered, and the node stays whole and arms itself by nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataplane.protocol.codec import encode
from dataplane.protocol.control.lookups import ListBlocks, LookupChain
from dataplane.protocol.control.messages import ControlRequest
from dataplane.protocol.control.moves import Move, ReadMove
from dataplane.protocol.control.nodes import DescribeNode, Hello, Resize
from dataplane.protocol.control.prefixes import ListPrefixes, PrefixKeys, Trace
from dataplane.protocol.control.records import PinSpec, PolicySpec, QuotaSpec
from dataplane.protocol.control.scopes import Clear, CountBlocks, Demote, Invalidate, Scope
from dataplane.protocol.control.snapshots import Bodies, Snapshot, digest_of
from dataplane.protocol.control.verification import Verification, Verify
from tests.dataplane import factories as make
from tests.dataplane.blocks import connect, store
from tests.dataplane.plane import Manager, Plane
from tests.sizes import size

INTEGERS = st.one_of(st.integers(-3, 5), st.integers(-(2**63), 2**64 - 1))
NUMBERS = st.one_of(st.none(), INTEGERS, st.floats())
TEXT = st.one_of(st.sampled_from(["", "a", "_default", "llama", "a/b", "lru"]), st.text(max_size=8))
PIECES = st.recursive(
    st.one_of(st.none(), st.booleans(), INTEGERS, st.floats(), TEXT, st.binary(max_size=40)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=8,
)
OPS = [*(kind.__struct_config__.tag for kind in get_args(ControlRequest)), "x"]


def fields_of(kind: type[msgspec.Struct]) -> st.SearchStrategy[dict[str, object]]:
    """Some of a struct's fields, with values of any type."""
    names = st.sampled_from([field.encode_name for field in msgspec.structs.fields(kind)])
    return st.dictionaries(names, st.one_of(NUMBERS, TEXT, PIECES), max_size=8)


def any_of(kind: type[msgspec.Struct]) -> st.SearchStrategy[bytes]:
    tag = kind.__struct_config__.tag
    return fields_of(kind).map(lambda fields: msgspec.msgpack.encode({"op": tag, **fields}))


RECORDS = st.one_of(fields_of(QuotaSpec), fields_of(PinSpec), fields_of(PolicySpec), PIECES)
BODIES = st.one_of(
    st.lists(RECORDS, max_size=4).map(msgspec.msgpack.encode),
    st.binary(max_size=60),
    st.builds(
        lambda salt, limit, floor: msgspec.msgpack.encode([QuotaSpec(salt, limit, floor)]), TEXT, INTEGERS, INTEGERS
    ),
)
SNAPSHOTS = st.builds(
    lambda kind, body, generation, right, dry: Snapshot(
        kind, "fuzz", generation, "n", digest_of(body) if right else "0" * 64, body, dry_run=dry
    ),
    st.sampled_from(["quotas", "pins", "policies"]),
    BODIES,
    INTEGERS,
    st.booleans(),
    st.booleans(),
).map(encode)
SCOPES = st.builds(Scope, *[st.one_of(st.none(), TEXT)] * 3)
KEYS = st.one_of(
    st.binary(max_size=70),
    st.integers(0, 20).map(lambda count: make.packed(make.keys(count))),
    st.just(make.packed(make.keys(2)) * 2),
)
FUZZED: tuple[type[msgspec.Struct], ...] = (
    Hello,
    DescribeNode,
    Invalidate,
    LookupChain,
    ListBlocks,
    Verify,
    Move,
    Trace,
    Resize,
)
MESSAGES = st.one_of(
    SNAPSHOTS,
    st.builds(Bodies, TEXT, st.dictionaries(TEXT, st.binary(max_size=64), max_size=3)).map(encode),
    st.builds(Invalidate, TEXT, SCOPES).map(encode),
    st.builds(Demote, TEXT, SCOPES).map(encode),
    st.builds(Clear, TEXT, st.booleans()).map(encode),
    st.builds(CountBlocks, TEXT, st.sampled_from(["invalidate", "demote", "clear"]), SCOPES, st.booleans()).map(encode),
    st.builds(LookupChain, TEXT, TEXT, KEYS, st.one_of(st.none(), TEXT), INTEGERS).map(encode),
    st.builds(ListBlocks, TEXT, *[st.one_of(st.none(), TEXT)] * 3, KEYS, INTEGERS, INTEGERS).map(encode),
    st.builds(Verify, TEXT, SCOPES).map(encode),
    st.builds(Verification, TEXT, INTEGERS).map(encode),
    st.builds(Move, TEXT, SCOPES, TEXT, st.booleans(), st.floats(), st.booleans()).map(encode),
    st.builds(ReadMove, TEXT, INTEGERS).map(encode),
    st.builds(ListPrefixes, TEXT, st.sampled_from(["bytes", "hits"]), st.one_of(st.none(), TEXT), INTEGERS).map(encode),
    st.builds(PrefixKeys, TEXT, TEXT).map(encode),
    st.builds(Trace, TEXT, st.floats(), INTEGERS).map(encode),
    st.builds(Resize, TEXT, st.one_of(st.integers(-1, 64 << 20), st.just(2**62))).map(encode),
    *[any_of(kind) for kind in FUZZED],
    st.tuples(st.sampled_from(OPS), st.dictionaries(TEXT, PIECES, max_size=5)).map(
        lambda each: msgspec.msgpack.encode({**each[1], "op": each[0]})
    ),
    st.binary(max_size=200),
)
SETTINGS = settings(
    max_examples=size(150, 50),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def fuzzed(shared_plane: Plane) -> Iterator[tuple[Plane, Manager]]:
    """A node with some blocks, and a management plane that has lost its mind."""
    chain = make.keys(20)
    with connect(shared_plane) as client:
        store(client, chain)
        client.lookup(chain)
        with shared_plane.manager() as manager:
            yield shared_plane, manager
    assert shared_plane.alive, shared_plane.log()
    assert "Traceback" not in shared_plane.log()
    assert "request_failed" not in shared_plane.log()


@SETTINGS
@given(messages=st.lists(MESSAGES, min_size=1, max_size=4))
def test_every_control_message_is_answered_and_accounts_stay_consistent(
    fuzzed: tuple[Plane, Manager], messages: list[bytes]
) -> None:
    plane, manager = fuzzed
    for message in messages:
        manager.socket.send(message)
        if manager.socket.poll(1000):
            manager.receive()
        else:  # the one that has no answer: bodies of which more are to come
            assert msgspec.msgpack.decode(message)["op"] == "bodies"
    plane.describe()  # audits the accounts
