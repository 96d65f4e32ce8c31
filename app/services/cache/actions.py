"""Actions on cached blocks. Each is audited before the nodes are asked to execute it."""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from app.errors import FieldError, Invalid
from app.ingest.fleet import FleetNode
from app.push.link import Question
from app.schemas.cache.actions import (
    ActionAnswer,
    ClearPost,
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
from app.services.base.large_work import LargeWork
from app.services.base.principals import Principal
from app.services.fleet.targets import NodeAnswers, Targets
from app.services.records.chains import given, resolved
from app.services.records.tokenizers import Tokenizers
from dataplane.protocol.control import (
    Clear,
    ControlReply,
    CountBlocks,
    Counted,
    Demote,
    Invalidate,
    Scope,
    Swept,
    Verification,
    Verified,
    Verify,
    digest_of,
)
from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.salts import shown

Verb = Literal["invalidate", "demote"]
R = TypeVar("R", bound=ControlReply)
LOOK_S = 0.2
"""Seconds between checks of a verification that a caller waits for."""
_SPACE = re.compile(r"[0-9a-f]{32}", re.ASCII)


class Actions:
    def __init__(
        self, targets: Targets, changes: Changes, tokenizers: Tokenizers, large_work: LargeWork
    ) -> None:
        self._targets = targets
        self._changes = changes
        self._tokenizers = tokenizers
        self._large_work = large_work

    async def sweep(self, verb: Verb, request: SweepPost, by: Principal) -> ActionAnswer:
        """Invalidate or demote the blocks of a scope. A dry run only counts them and is not audited. Raises Invalid,
        Forbidden, NodeUnreachable if no node is connected."""
        scope, used = await self._scope(request, by, whole=False)
        nodes = self._targets.selected(request)
        if request.dry_run:
            return _counted(
                await self._ask(nodes, lambda nonce: CountBlocks(nonce, verb, scope), Counted), used
            )
        await self._changes.note(verb, "blocks", _name(scope), _audited(scope, nodes), by)
        kind = Invalidate if verb == "invalidate" else Demote
        replies = await self._ask(nodes, lambda nonce: kind(nonce, scope), Swept)
        return _swept(replies, used)

    async def clear(self, request: ClearPost, by: Principal) -> ActionAnswer:
        """Drop all cached blocks of all tenants. Raises Invalid, Forbidden, NodeUnreachable."""
        by.check_whole("clearing")
        if not request.confirm:
            message = "expected true: this drops everything that is cached"
            raise Invalid(f"confirm: {message}", [FieldError("confirm", message)])
        nodes = self._targets.selected(request)
        if request.dry_run:
            everything = Scope()
            counts = await self._ask(
                nodes, lambda nonce: CountBlocks(nonce, "clear", everything, request.permanent), Counted
            )
            return _counted(counts, None)
        what = "everything, also under permanent pins" if request.permanent else "everything"
        await self._changes.note(
            "clear", "blocks", what, {"permanent": request.permanent, "nodes": _names(nodes)}, by
        )
        replies = await self._ask(nodes, lambda nonce: Clear(nonce, request.permanent), Swept)
        return _swept(replies, None)

    async def verify(self, request: VerifyPost, by: Principal, wait_s: float = 0.0) -> VerifyAnswer:
        """Start to verify blocks against their checksums, and wait for the result for at most `wait_s` seconds. Raises
        Invalid, Forbidden, NodeUnreachable."""
        scope, used = await self._scope(request, by, whole=True)
        nodes = self._targets.selected(request)
        await self._changes.note("verify", "blocks", _name(scope), _audited(scope, nodes), by)
        replies = await self._ask(nodes, lambda nonce: Verify(nonce, scope), Verified)
        numbers = {each.node.name: each.answer.state.number for each in replies if each.answer is not None}
        until = time.monotonic() + wait_s
        while wait_s and any(
            each.answer is not None and each.answer.state.ended_at is None for each in replies
        ):
            left = until - time.monotonic()
            if left <= 0:
                break
            await asyncio.sleep(min(LOOK_S, left))
            progressed = await self._targets.each(
                [node for node in nodes if node.name in numbers],
                lambda node: self._progress(node, numbers[node.name]),
            )
            never = [each for each in replies if each.node.name not in numbers]
            replies = sorted([*never, *progressed], key=lambda each: each.node.name)
        items = [_verification(each) for each in replies]
        return VerifyAnswer(items, len(items), used)

    async def verification(self, name: str, number: int, by: Principal) -> NodeVerification:
        """Return the progress of a verification on a node. Raises NotFound, NodeUnreachable, NodeRefused."""
        by.check_whole("a verification")
        node = self._targets.node(name)
        reply = await self._progress(node, number)
        return _verification(NodeAnswers(node, reply, None))

    async def _progress(self, node: FleetNode, number: int) -> Verified:
        return await self._targets.operations.ask(node, lambda nonce: Verification(nonce, number), Verified)

    async def _ask(
        self, nodes: Sequence[FleetNode], message: Callable[[str], Question], kind: type[R]
    ) -> list[NodeAnswers[R]]:
        return await self._targets.each(nodes, lambda node: self._targets.operations.ask(node, message, kind))

    async def _scope(
        self, request: ScopePost, by: Principal, *, whole: bool
    ) -> tuple[Scope, TokenizerUsed | None]:
        """Return the scope of a request. `whole`: a request without any field means everything. Raises Invalid with
        every fault found, Forbidden."""
        faults = checks.Faults()
        named = (request.tenant, request.model, request.space)
        if not whole and all(name is None for name in named) and not given(request):
            fields = "tenant, model, space, tokens, keys, text, messages"
            faults.add("tenant", f"expected at least one of {fields}: everything at once is not a scope")
            faults.stop()
        salt = model = space = None
        if request.tenant is not None:
            salt = faults.check("tenant", lambda: checks.tenant(request.tenant or ""))
        if request.model is not None:
            model = faults.check("model", lambda: checks.model(request.model or ""))
        if request.space is not None:
            space = faults.check("space", lambda: _space(request.space or ""))
        faults.stop()
        if salt is None:
            by.check_whole("a scope without a tenant")
        else:
            by.check_salt(salt)
        chain = await resolved(request, model, salt, self._tokenizers, self._large_work, by)
        scope = Scope(tenant=salt, model=model, space=space, keys=b"".join(chain.keys))
        return scope, chain.tokenizer


def _swept(replies: Sequence[NodeAnswers[Swept]], used: TokenizerUsed | None) -> ActionAnswer:
    items = [
        NodeSweep(each.node.name, None, each.error)
        if each.answer is None
        else NodeSweep(each.node.name, each.answer.sweep, None, each.answer.blocks, each.answer.bytes)
        for each in replies
    ]
    return _summed(items, used)


def _counted(replies: Sequence[NodeAnswers[Counted]], used: TokenizerUsed | None) -> ActionAnswer:
    items = [
        NodeSweep(each.node.name, None, each.error)
        if each.answer is None
        else NodeSweep(each.node.name, None, None, each.answer.blocks, each.answer.bytes)
        for each in replies
    ]
    return _summed(items, used)


def _summed(items: list[NodeSweep], used: TokenizerUsed | None) -> ActionAnswer:
    blocks, size = (item.blocks or 0 for item in items), (item.bytes or 0 for item in items)
    return ActionAnswer(items, len(items), used, sum(blocks), sum(size))


def _verification(reply: NodeAnswers[Verified]) -> NodeVerification:
    state = None if reply.answer is None else VerifyProgress(**msgspec.structs.asdict(reply.answer.state))
    return NodeVerification(reply.node.name, state, reply.error)


def _space(text: str) -> str:
    if _SPACE.fullmatch(text.lower()) is None:
        raise ValueError(f"expected 32 hex digits, got {text[:40]!r}")
    return text.lower()


def _names(nodes: Sequence[FleetNode]) -> list[str]:
    return [node.name for node in nodes]


def _audited(scope: Scope, nodes: Sequence[FleetNode]) -> dict[str, Any]:
    """Return the fields that the audit keeps; a digest replaces the keys."""
    return {
        "tenant": None if scope.tenant is None else shown(scope.tenant),
        "model": scope.model,
        "space": scope.space,
        "key_count": len(scope.keys) // KEY_BYTES,
        "keys_digest": digest_of(scope.keys) if scope.keys else None,
        "nodes": _names(nodes),
    }


def _name(scope: Scope) -> str:
    """Return a short description of the scope."""
    audited = _audited(scope, ())
    words = [f"{name} {audited[name]}" for name in ("tenant", "model", "space", "key_count") if audited[name]]
    return ", ".join(words)[:256] or "everything"
