"""Hot prefixes over all connected nodes, and the keys of one of them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from app.errors import Invalid
from app.push.node_requests import NodeReply, NodeRequests
from app.schemas.base.fields import MAX_KEYS
from app.schemas.records.prefixes import By, NodeError, PrefixAnswer, PrefixList
from app.services.base import checks
from app.services.base.principals import Principal
from dataplane.base.visible import is_printable
from dataplane.protocol.control.prefixes import MAX_PREFIXES, ListPrefixes, Prefix, PrefixesListed, PrefixKeys
from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.salts import shown

MAX_LABEL_CHARACTERS = 128
MAX_TENANTS = 50
"""Largest number of tenants of a limited caller whose prefixes are listed together: each takes one request per node."""


@dataclass(frozen=True)
class FoundPrefix:
    """A prefix with its keys, as a node reported it."""

    model: str
    salt: str
    keys: list[bytes]


class PrefixService:
    def __init__(self, node_requests: NodeRequests) -> None:
        self._node_requests = node_requests

    async def page(self, by: By, tenant: str | None, limit: int, caller: Principal) -> PrefixList:
        """Return the hottest prefixes first; limited callers get only those of their tenants. Raises Invalid,
        Forbidden, NodeUnreachable if no node is connected."""
        items: list[PrefixAnswer] = []
        failed_nodes: dict[str, str] = {}
        for salt in _salts(caller, tenant):
            replies = await self._listed(by, salt, limit)
            merged = _merged((reply.node.name, p) for reply in replies if reply.answer for p in reply.answer.prefixes)
            items += [item for item in merged if salt is None or item.tenant == shown(salt)]
            failed_nodes |= {reply.node.name: reply.error or "" for reply in replies if reply.answer is None}
        items.sort(key=lambda item: (-(item.bytes_served if by == "bytes" else item.hits), item.label))
        return PrefixList(items[:limit], len(items), list(map(NodeError, failed_nodes, failed_nodes.values())))

    async def _listed(self, by: By, salt: str | None, limit: int) -> list[NodeReply[PrefixesListed]]:
        """Ask all nodes for hot prefixes. Raises NodeUnreachable."""
        return await self._request_all(ListPrefixes("", by=by, tenant=salt, limit=limit))

    async def _request_all(self, message: ListPrefixes | PrefixKeys) -> list[NodeReply[PrefixesListed]]:
        """Ask all nodes. Raises NodeUnreachable."""
        return await self._node_requests.ask_all(self._node_requests.connected(), message, PrefixesListed)

    async def keys(self, label: str, by: Principal, tenant: str | None = None) -> FoundPrefix:
        """Return the keys behind a label. Limited callers find only prefixes of one of their tenants; `tenant` (shown
        name) selects it. Raises Invalid if no node knows the label, Forbidden, NodeUnreachable."""
        if not 1 <= len(label) <= MAX_LABEL_CHARACTERS or not is_printable(label):
            raise Invalid.at("prefix", f"expected 1 to {MAX_LABEL_CHARACTERS} printable characters")
        if by.salts is not None:
            return await self._of_tenant(label, _one_of(by, tenant))
        replies = await self._request_all(PrefixKeys("", label=label))
        matches = [p for p in _all(replies) if p.label == label]
        if matches:
            return _best(label, matches)
        failed_nodes = [reply for reply in replies if reply.answer is None]
        failures = f" ({'; '.join(reply.error or '' for reply in failed_nodes[:3])})" if failed_nodes else ""
        raise Invalid.at(
            "prefix",
            f"no connected node has a prefix {label!r} among its hot ones now: 'larder prefixes' lists them{failures}",
        )

    async def _of_tenant(self, label: str, salt: str) -> FoundPrefix:
        """Return a prefix of one tenant. Nodes are asked for the tenant's prefixes first, and for keys only if the
        label is among them, so that prefixes of other tenants make no difference, not even in response time."""
        unknown = Invalid.at(
            "prefix", f"no connected node has a prefix {label!r} of {shown(salt)!r} among its hot ones now"
        )
        listed = await self._listed("bytes", salt, MAX_PREFIXES)
        if (label, salt) not in {(p.label, p.tenant) for p in _all(listed)}:
            raise unknown
        replies = await self._request_all(PrefixKeys("", label=label))
        matches = [p for p in _all(replies) if (p.label, p.tenant) == (label, salt)]
        if not matches:
            raise unknown
        return _best(label, matches)


def _salts(by: Principal, tenant: str | None) -> list[str | None]:
    """Return the salts to query, one after the other; None means all tenants. Raises Invalid, Forbidden."""
    if tenant is not None:
        salt = checks.tenant_in_path(tenant)
        by.check_salt(salt)
        return [salt]
    if by.salts is None:
        return [None]
    if len(by.salts) > MAX_TENANTS:
        message = (
            f"expected one of the {len(by.salts)} tenants that this token is limited to, because at most {MAX_TENANTS} "
            "can be listed together"
        )
        raise Invalid.at("tenant", message)
    return [*sorted(by.salts)]


def _one_of(by: Principal, tenant: str | None) -> str:
    """Return the salt that a limited caller selected. Raises Invalid, Forbidden."""
    if tenant is None and by.salts is not None and len(by.salts) == 1:
        (salt,) = by.salts
        return salt
    if tenant is None:
        raise Invalid.at("tenant", f"expected one of {by.tenants()}: this token is limited to several tenants")
    salt = checks.tenant_in_path(tenant)
    by.check_salt(salt)
    return salt


def _all(replies: Iterable[NodeReply[PrefixesListed]]) -> Iterator[Prefix]:
    for reply in replies:
        yield from [] if reply.answer is None else reply.answer.prefixes


def _best(label: str, prefixes: Sequence[Prefix]) -> FoundPrefix:
    """Return the longest valid prefix that nodes have under a label. Raises Invalid."""
    for prefix in sorted(prefixes, key=lambda p: -len(p.keys)):
        found_prefix = _pinnable(prefix)
        if found_prefix is not None:
            return found_prefix
    raise Invalid.at(
        "prefix",
        f"the prefix {label!r} cannot be pinned: expected 1 to {MAX_KEYS} different keys of a known model, got "
        f"{len(prefixes[0].keys)} bytes of keys",
    )


def _pinnable(prefix: Prefix) -> FoundPrefix | None:
    """Return a node's answer as keys; None if a pin cannot hold them."""
    count, remainder = divmod(len(prefix.keys), KEY_BYTES)
    faults = checks.Faults()
    faults.check("model", lambda: checks.model(prefix.model))
    faults.check("tenant", lambda: checks.tenant(shown(prefix.tenant)))
    if faults.errors or remainder or not 1 <= count <= MAX_KEYS:
        return None
    keys = [prefix.keys[at : at + KEY_BYTES] for at in range(0, len(prefix.keys), KEY_BYTES)]
    return FoundPrefix(prefix.model, prefix.tenant, keys) if len(set(keys)) == count else None


def _merged(replies: Iterable[tuple[str, Prefix]]) -> list[PrefixAnswer]:
    """Return one answer for each label, tenant and model."""
    groups: dict[tuple[str, str, str], list[tuple[str, Prefix]]] = {}
    for node, prefix in replies:
        groups.setdefault((prefix.label, prefix.tenant, prefix.model), []).append((node, prefix))
    return [
        PrefixAnswer(
            label=label,
            tenant=shown(salt),
            model=model,
            depth=max(p.depth for _, p in group),
            hits=sum(p.hits for _, p in group),
            bytes_served=sum(p.bytes_served for _, p in group),
            error=sum(p.error for _, p in group),
            resident=sum(p.resident for _, p in group),
            last_used=max(p.last_used for _, p in group),
            nodes=sorted({node for node, _ in group}),
        )
        for (label, salt, model), group in groups.items()
    ]
