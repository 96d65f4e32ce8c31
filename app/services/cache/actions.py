"""Actions on cached blocks. Each is audited before the nodes are asked to execute it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from app.errors import Invalid, NodeRefused
from app.ingest.fleet import FleetNode
from app.observe.catalogue.fleet import MoveCancelled, MoveRequested, SweepRequested, VerificationRequested
from app.push.node_requests import NodeReply
from app.schemas.cache.actions import (
    SCOPE_FIELDS,
    ActionAnswer,
    ClearPost,
    CompressPost,
    MoveAnswer,
    MovePost,
    MoveProgress,
    NodeMove,
    NodeSweep,
    NodeVerification,
    ScopePost,
    SweepPost,
    VerifyAnswer,
    VerifyPost,
    VerifyProgress,
)
from app.schemas.records.tokenizers import TokenizerUsed
from app.services.base import checks
from app.services.base.changes import Changes
from app.services.base.principals import Principal
from app.services.fleet.targets import Targets
from app.services.records.chains import Chains, sources_of
from dataplane.protocol.control.moves import CancelMove, Move, Moved, MoveState, ReadMove
from dataplane.protocol.control.scopes import Clear, CountBlocks, Counted, Demote, Invalidate, Scope, Swept
from dataplane.protocol.control.snapshots import digest_of
from dataplane.protocol.control.verification import Verification, VerificationState, Verified, Verify
from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.salts import shown
from dataplane.protocol.tiers import EXPECTED_TIER_NAME, MEMORY, is_tier_name

Verb = Literal["invalidate", "demote"]
P = TypeVar("P", Verified, Moved)
LOOK_S = 0.2
"""Seconds between checks of a verification or a move that a caller waits for."""
COUNT_S = 10.0
"""Longest wait for the end of a dry run of a move."""


class Actions:
    def __init__(self, targets: Targets, changes: Changes, chains: Chains) -> None:
        self._targets = targets
        self._requests = targets.node_requests
        self._changes = changes
        self._chains = chains

    async def sweep(self, verb: Verb, request: SweepPost, by: Principal) -> ActionAnswer:
        """Invalidate or demote the blocks of a scope. A dry run only counts them and is not audited. Raises Invalid,
        Forbidden, NodeUnreachable if no node is connected."""
        scope, used = await self._scope(request, by, whole=False)
        nodes = self._targets.selected(request)
        if request.dry_run:
            return _swept(await self._requests.ask_all(nodes, CountBlocks("", verb, scope), Counted), used)
        event = SweepRequested(verb, _name(scope), _node_names(nodes), *_limits(scope))
        await self._changes.note(verb, "blocks", _name(scope), _audited(scope, nodes), by, event)
        kind = Invalidate if verb == "invalidate" else Demote
        replies = await self._requests.ask_all(nodes, kind("", scope), Swept)
        return _swept(replies, used)

    async def clear(self, request: ClearPost, by: Principal) -> ActionAnswer:
        """Drop all cached blocks of all tenants. Raises Invalid, Forbidden, NodeUnreachable."""
        by.check_whole("clearing")
        if not request.confirm:
            raise Invalid.at("confirm", "expected true: this drops everything that is cached")
        nodes = self._targets.selected(request)
        if request.dry_run:
            question = CountBlocks("", "clear", Scope(), request.permanent)
            return _swept(await self._requests.ask_all(nodes, question, Counted), None)
        scope = "everything, including blocks under permanent pins" if request.permanent else "everything"
        audited = {"permanent": request.permanent, "nodes": _node_names(nodes)}
        event = SweepRequested("clear", scope, _node_names(nodes))
        await self._changes.note("clear", "blocks", scope, audited, by, event)
        replies = await self._requests.ask_all(nodes, Clear("", request.permanent), Swept)
        return _swept(replies, None)

    async def verify(self, request: VerifyPost, by: Principal, wait_s: float = 0.0) -> VerifyAnswer:
        """Start to verify blocks against their checksums, and wait for the result for at most `wait_s` seconds. Raises
        Invalid, Forbidden, NodeUnreachable."""
        scope, used = await self._scope(request, by, whole=True)
        nodes = self._targets.selected(request)
        event = VerificationRequested(_name(scope), _node_names(nodes), *_limits(scope))
        await self._changes.note("verify", "blocks", _name(scope), _audited(scope, nodes), by, event)
        replies = await self._requests.ask_all(nodes, Verify("", scope), Verified)
        replies = await self._wait_for_end(replies, self._verified, wait_s)
        items = [_verification(reply) for reply in replies]
        return VerifyAnswer(items, len(items), used)

    async def _wait_for_end(
        self, replies: list[NodeReply[P]], progress: Callable[[FleetNode, int], Awaitable[P]], wait_s: float
    ) -> list[NodeReply[P]]:
        """Wait for the end of the work that nodes have begun, for at most `wait_s` seconds, and return their
        answers."""
        numbers = {reply.node.name: reply.answer.state.number for reply in replies if reply.answer is not None}
        nodes = [reply.node for reply in replies if reply.answer is not None]
        deadline = time.monotonic() + wait_s
        while wait_s and any(reply.answer is not None and reply.answer.state.ended_at is None for reply in replies):
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                break
            await asyncio.sleep(min(LOOK_S, remaining_s))
            progressed: list[NodeReply[P]] = await self._requests.each(
                nodes, lambda node: progress(node, numbers[node.name])
            )
            unstarted: list[NodeReply[P]] = [reply for reply in replies if reply.node.name not in numbers]
            replies = unstarted + progressed
            replies.sort(key=lambda reply: reply.node.name)
        return replies

    async def move(self, request: MovePost | CompressPost, by: Principal, wait_s: float = 0.0) -> MoveAnswer:
        """Start to move blocks to a tier or to memory, or to encode blocks of a tier again, and wait for the result for
        at most `wait_s` seconds. A dry run only counts the blocks and is not audited. Raises Invalid, Forbidden,
        NodeUnreachable."""
        if not is_tier_name(request.tier):
            raise Invalid.at("tier", EXPECTED_TIER_NAME)
        compress = isinstance(request, CompressPost)
        scope, used = await self._scope(request, by, whole=compress)
        options: dict[str, Any] = {}
        if isinstance(request, MovePost):
            _check_source(request)
            options = {"source": request.source, "release": request.release}
        nodes = self._targets.selected(request)
        if request.dry_run:
            wait_s = max(wait_s, COUNT_S)
        else:
            release, source = options.get("release", False), options.get("source", MEMORY)
            names = _node_names(nodes)
            event = MoveRequested(_name(scope), names, request.tier, release, compress, *_limits(scope), source=source)
            audited = {**_audited(scope, nodes), "tier": request.tier, **options}
            verb = "compress" if compress else "move"
            await self._changes.note(verb, "blocks", _name(scope), audited, by, event)
        deadline_s, dry_run = request.deadline_s, request.dry_run
        move = Move("", scope, request.tier, deadline_s=deadline_s, dry_run=dry_run, compress=compress, **options)
        replies = await self._requests.ask_all(nodes, move, Moved)
        items = [_move(reply) for reply in await self._wait_for_end(replies, self._moved, wait_s)]
        states = [item.move for item in items if item.move is not None]
        return MoveAnswer(
            items, len(items), used, sum(state.blocks for state in states), sum(state.bytes for state in states)
        )

    async def move_progress(self, name: str, number: int, by: Principal) -> NodeMove:
        """Return the progress of a move on a node. Raises NotFound, Forbidden, NodeUnreachable, NodeRefused."""
        node = self._targets.node(name)
        return _move(NodeReply(node, await self._own_move(node, number, by)))

    async def cancel_move(self, name: str, number: int, by: Principal, wait_s: float = 0.0) -> NodeMove:
        """Cancel a move on a node, and wait for its end for at most `wait_s` seconds. Blocks that have been moved stay
        moved. A move that has ended stays as it is. Raises NotFound, Forbidden, NodeUnreachable, NodeRefused."""
        node = self._targets.node(name)
        state = (await self._own_move(node, number, by)).state
        if state.ended_at is None:
            tenant = None if state.tenant is None else shown(state.tenant)
            event = MoveCancelled(number, state.tier, tenant)
            audited = {"node": name, "move": number, "tier": state.tier, "tenant": tenant}
            await self._changes.note("cancel", "move", f"{name}/{number}", audited, by, event, name)
        replies = await self._requests.ask_all([node], CancelMove("", number), Moved)
        (reply,) = await self._wait_for_end(replies, self._moved, wait_s)
        if reply.answer is None:
            raise NodeRefused(reply.error or f"{name}: no answer")
        return _move(reply)

    async def _own_move(self, node: FleetNode, number: int, by: Principal) -> Moved:
        """Return the state of a move that the caller may see. Raises Forbidden, NodeUnreachable, NodeRefused."""
        moved = await self._moved(node, number)
        _check_own(moved.state, "this move", by)
        return moved

    async def _moved(self, node: FleetNode, number: int) -> Moved:
        return await self._requests.ask(node, ReadMove("", number), Moved)

    async def verification(self, name: str, number: int, by: Principal) -> NodeVerification:
        """Return the progress of a verification on a node. Raises NotFound, Forbidden, NodeUnreachable, NodeRefused."""
        node = self._targets.node(name)
        verified = await self._verified(node, number)
        _check_own(verified.state, "this verification", by)
        return _verification(NodeReply(node, verified))

    async def _verified(self, node: FleetNode, number: int) -> Verified:
        return await self._requests.ask(node, Verification("", number), Verified)

    async def _scope(self, request: ScopePost, by: Principal, *, whole: bool) -> tuple[Scope, TokenizerUsed | None]:
        """Return the scope of a request. `whole`: a request without any field means everything. Raises Invalid with
        every fault found, Forbidden."""
        faults = checks.Faults()
        named = (request.tenant, request.model, request.space)
        if not whole and all(name is None for name in named) and not sources_of(request):
            names = ", ".join(SCOPE_FIELDS)
            faults.add("tenant", f"expected at least one of {names}: a scope without any field is not allowed")
            faults.stop()
        fields = checks.scope(request, faults)
        faults.stop()
        salt = fields["tenant"]
        if salt is None:
            by.check_whole("a scope without a tenant")
        else:
            by.check_salt(salt)
        chain = await self._chains.of(request, fields["model"], salt, by)
        return Scope(**fields, keys=b"".join(chain.keys)), chain.tokenizer


def _swept(
    replies: Sequence[NodeReply[Swept]] | Sequence[NodeReply[Counted]], used: TokenizerUsed | None
) -> ActionAnswer:
    items = []
    for reply in replies:
        if reply.answer is None:
            items.append(NodeSweep(reply.node.name, None, reply.error))
        else:
            sweep = reply.answer.sweep if isinstance(reply.answer, Swept) else None
            items.append(NodeSweep(reply.node.name, sweep, None, reply.answer.blocks, reply.answer.bytes))
    blocks, size = (item.blocks or 0 for item in items), (item.bytes or 0 for item in items)
    return ActionAnswer(items, len(items), used, sum(blocks), sum(size))


def _check_own(state: VerificationState | MoveState, subject: str, by: Principal) -> None:
    """Raise Forbidden if the caller may not see the state of work on blocks. The error does not name the tenant, which
    the caller did not name either."""
    if state.tenant is None or not by.sees(state.tenant):
        by.check_whole(subject)


def _verification(reply: NodeReply[Verified]) -> NodeVerification:
    state = None if reply.answer is None else VerifyProgress(**_shown_fields(reply.answer.state))
    return NodeVerification(reply.node.name, state, reply.error)


def _move(reply: NodeReply[Moved]) -> NodeMove:
    state = None if reply.answer is None else MoveProgress(**_shown_fields(reply.answer.state))
    return NodeMove(reply.node.name, state, reply.error)


def _shown_fields(state: VerificationState | MoveState) -> dict[str, Any]:
    return {**msgspec.structs.asdict(state), "tenant": None if state.tenant is None else shown(state.tenant)}


def _check_source(request: MovePost) -> None:
    """Raise Invalid if blocks cannot be copied from this tier to that one."""
    if not is_tier_name(request.source):
        raise Invalid.at("source", EXPECTED_TIER_NAME)
    if request.source == MEMORY:
        return
    if request.tier == MEMORY:
        message = f"expected {MEMORY!r}, because blocks are loaded into memory from all tiers"
    elif request.source == request.tier:
        message = f"expected another tier than {request.tier!r}, the target"
    else:
        return
    raise Invalid.at("source", message)


def _node_names(nodes: Sequence[FleetNode]) -> list[str]:
    return [node.name for node in nodes]


def _limits(scope: Scope) -> tuple[str | None, str | None, str | None, int]:
    """Return the tenant, the model, the space and the number of keys that a scope is limited to."""
    tenant = None if scope.tenant is None else shown(scope.tenant)
    return tenant, scope.model, scope.space, len(scope.keys) // KEY_BYTES


def _audited(scope: Scope, nodes: Sequence[FleetNode]) -> dict[str, Any]:
    """Return the fields that the audit keeps; a digest replaces the keys."""
    tenant, model, space, key_count = _limits(scope)
    return {
        "tenant": tenant,
        "model": model,
        "space": space,
        "key_count": key_count,
        "keys_digest": digest_of(scope.keys) if scope.keys else None,
        "nodes": _node_names(nodes),
    }


def _name(scope: Scope) -> str:
    """Return a short description of the scope."""
    audited = _audited(scope, ())
    words = [f"{name} {audited[name]}" for name in ("tenant", "model", "space", "key_count") if audited[name]]
    return ", ".join(words)[:256] or "everything"
