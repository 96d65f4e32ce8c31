"""Actions on what is cached, asked of every connected node and written down in the audit before they are."""

import asyncio
import re
from typing import Any, Literal

from app.push.operations import Operations
from app.schemas.actions import ActionAnswer, NodeAction, ScopePost
from app.services import checks
from app.services.callers import Caller
from app.services.changes import Changes
from app.services.key_intent import check_tokens, unpacked
from dataplane.protocol.control import Demote, Invalidate, Scope, Swept, digest_of
from dataplane.protocol.keys import KEY_BYTES, chain
from dataplane.protocol.salts import shown

Verb = Literal["invalidate", "demote"]
_SPACE = re.compile(r"[0-9a-f]{32}", re.ASCII)
_FIELDS = ("tenant", "model", "space", "tokens", "keys")


class Actions:
    def __init__(self, operations: Operations, changes: Changes) -> None:
        self._operations = operations
        self._changes = changes

    async def sweep(self, verb: Verb, asked: ScopePost, by: Caller) -> ActionAnswer:
        """Raises Invalid, NodeUnreachable when no node is connected."""
        scope = await asyncio.to_thread(resolve, asked)
        self._operations.connected()
        await self._changes.note(verb, "blocks", _name(scope), _audited(scope), by)
        if verb == "invalidate":
            told = await self._operations.ask_all(lambda nonce: Invalidate(nonce, scope), Swept)
        else:
            told = await self._operations.ask_all(lambda nonce: Demote(nonce, scope), Swept)
        items = [
            NodeAction(one.node, one.answer.sweep if one.answer is not None else None, one.error or None)
            for one in told
        ]
        return ActionAnswer(items, len(items))


def resolve(asked: ScopePost) -> Scope:
    """Raises Invalid with every fault found."""
    faults = checks.Faults()
    if all(getattr(asked, name) is None for name in _FIELDS):
        faults.add(
            "tenant", f"expected at least one of {', '.join(_FIELDS)}: everything at once is not a scope"
        )
        faults.stop()
    salt = model = space = None
    keys: list[bytes] = []
    if asked.tenant is not None:
        salt = faults.check("tenant", lambda: checks.tenant(asked.tenant or ""))
    if asked.model is not None:
        model = faults.check("model", lambda: checks.model(asked.model or ""))
    if asked.space is not None:
        space = faults.check("space", lambda: _space(asked.space or ""))
    if asked.tokens is not None and asked.keys is not None:
        faults.add("tokens", "expected at most one of 'tokens' and 'keys'")
    elif asked.keys is not None:
        keys = faults.check("keys", lambda: unpacked(asked.keys or [])) or []
    elif asked.tokens is not None:
        for name in ("tenant", "model"):
            if getattr(asked, name) is None:
                faults.add(name, f"expected a {name}: a prefix of tokens is that of one tenant and one model")
        check_tokens(asked.tokens, asked.chunk_tokens, faults)
        if not faults.errors:
            keys = chain(asked.tokens, salt or "", chunk_tokens=asked.chunk_tokens)
    faults.stop()
    return Scope(tenant=salt, model=model, space=space, keys=b"".join(keys))


def _space(text: str) -> str:
    if _SPACE.fullmatch(text.lower()) is None:
        raise ValueError(f"expected 32 hex digits, got {text[:40]!r}")
    return text.lower()


def _audited(scope: Scope) -> dict[str, Any]:
    """What the audit keeps: a digest stands for the keys."""
    return {
        "tenant": None if scope.tenant is None else shown(scope.tenant),
        "model": scope.model,
        "space": scope.space,
        "key_count": len(scope.keys) // KEY_BYTES,
        "keys_digest": digest_of(scope.keys) if scope.keys else None,
    }


def _name(scope: Scope) -> str:
    """The scope in a few words."""
    words = [f"{name} {value}" for name, value in _audited(scope).items() if value and name != "keys_digest"]
    return ", ".join(words)[:256]
