"""Enrolment of nodes: join tokens, and the reply to a node that asks to join.

A node is identified by its CURVE key, which it proves before it can send a request. The first time, it also needs a
join token; from then on its key suffices, until the node is forgotten. A token's secret has 256 bits, so a plain hash
of it is safe to store.
"""

import hmac
import ipaddress
import math
import re
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256

import structlog

from app.errors import Conflict, StoreUnavailable
from app.ingest.fleet import Fleet
from app.observe.catalogue.access import JoinTokenCreated, JoinTokenDeleted
from app.observe.catalogue.fleet import NodeEnrolled, NodeMoved
from app.push.keys import ManagerKeyPair
from app.push.node_journal import apply_row, stored_node
from app.schemas.fleet.enrolment import MAX_USES, JoinTokenAnswer, JoinTokenList, JoinTokenPost, NewJoinToken
from app.services.base import checks
from app.services.base.changes import Change, Changes
from app.services.base.expiry import ttl
from app.services.base.fields import answer
from app.services.base.principals import PLANE, Principal
from app.services.base.throttle import Throttle
from app.store.base.database import Database
from app.store.fleet import enrolment, nodes
from app.store.fleet.enrolment import JoinTokenRow
from app.store.fleet.nodes import NodeRow
from dataplane.base import labels as label_rules
from dataplane.base.settings import SettingsError
from dataplane.base.visible import is_printable
from dataplane.protocol.join import (
    MAX_NAME_CHARACTERS,
    SECRET_BYTES,
    VERSION,
    WILDCARD_HOSTS,
    Join,
    JoinCode,
    Joined,
    JoinRefused,
    JoinReply,
    JoinToken,
    host_of,
    is_loopback,
    token_text,
    url_fault,
    with_host,
)

ID_BYTES = 8
_TOKEN_ID = re.compile(rf"[0-9a-f]{{{2 * ID_BYTES}}}\Z", re.ASCII)

log = structlog.get_logger()


class _Refusal(Exception):
    def __init__(self, code: JoinCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Enrolment:
    """Creates and deletes join tokens, and decides about nodes that ask to join."""

    def __init__(
        self,
        database: Database,
        changes: Changes,
        fleet: Fleet,
        keys: Callable[[], ManagerKeyPair],
        addresses: tuple[str, ...],
        next_key: Callable[[], str],
    ) -> None:
        """`addresses` are the configured addresses of the enrolment socket; if empty, the address follows from its URL.
        `next_key` returns the public key that will replace the current one, or ""; it may raise SettingsError."""
        self._database = database
        self._changes = changes
        self._fleet = fleet
        self._keys = keys
        self._addresses = addresses
        self._next_key = next_key
        self._throttle = Throttle()
        self._ignored_until: dict[str, float] = {}
        """Addresses that are ignored until this monotonic time; at most those that failed in the last second."""
        self.url = ""
        """URL of the enrolment socket, once it is bound; "" if there is none."""

    # ---- tokens

    async def create(self, request: JoinTokenPost, by: Principal) -> NewJoinToken:
        """Create a join token. Raises Invalid, Conflict (there is no enrolment socket)."""
        if not self.url:
            raise Conflict(
                "this management plane has no join socket: set LARDER_APP__JOIN_URL, for instance tcp://0.0.0.0:8471"
            )
        faults = checks.Faults()
        name = faults.check("name", lambda: _name(request.name))
        labels = faults.check("labels", lambda: checks.labels(request.labels))
        ttl_s = request.ttl_s
        if ttl_s is not None:
            faults.check("ttl_s", lambda: ttl(ttl_s))
        if request.uses is not None and not 1 <= request.uses <= MAX_USES:
            faults.add("uses", f"expected 1 to {MAX_USES}, or null for any number, got {request.uses}")
        for at, address in enumerate(request.addresses):
            if fault := url_fault(address):
                faults.add(f"addresses[{at}]", fault)
            elif host_of(address) in WILDCARD_HOSTS:
                faults.add(f"addresses[{at}]", f"expected an address that nodes can reach, got {address!r}")
        faults.stop()
        secret = secrets.token_bytes(SECRET_BYTES)
        async with self._changes.begin(by) as change:
            row = JoinTokenRow(
                id=secrets.token_hex(ID_BYTES),
                name=name or "",
                hash=sha256(secret).hexdigest(),
                labels=labels,
                uses_left=request.uses,
                created_by=by.actor,
                created_at=change.now,
                expires_at=None if ttl_s is None else change.now + ttl_s,
                last_used_at=None,
            )
            change.session.add(row)
            change.noted("create", "join_token", row.id, None, _audited(row), event=JoinTokenCreated(row.id))
        token = JoinToken(row.id, secret, self._keys().public, request.addresses or self._default_addresses())
        return NewJoinToken(token_text(token), _answer(row, []))

    async def page(self) -> JoinTokenList:
        async with self._database.read() as session:
            rows = await enrolment.all_tokens(session)
            node_rows = await nodes.all_nodes(session)
        items = [_answer(row, [node.name for node in node_rows if node.joined_by == row.id]) for row in rows]
        return JoinTokenList(items, len(items))

    async def delete(self, ident: str, by: Principal) -> None:
        """Delete a join token. Nodes that joined with it stay. Raises NotFound."""
        async with self._changes.begin(by) as change:
            row = await change.session.get(JoinTokenRow, ident)
            if row is None:
                raise checks.missing("join token", ident)
            change.noted("delete", "join_token", ident, _audited(row), None, event=JoinTokenDeleted(ident))
            await change.session.delete(row)

    def _default_addresses(self) -> list[str]:
        if self._addresses:
            return list(self._addresses)
        if host_of(self.url) in WILDCARD_HOSTS:
            return [with_host(self.url, socket.getfqdn())]
        return [self.url]

    # ---- nodes that ask

    async def decide(self, message: Join, key: str, address: str) -> JoinReply:
        """Return the reply to the holder of a key."""
        if (wait_s := self._ignored_until.get(address, 0.0) - time.monotonic()) > 0:  # no transaction and no log line
            return _rate_limited(wait_s)
        try:
            try:
                joined = await self._join(message, key, address)
            except Conflict:  # another manager just enrolled this name or key: read it again
                joined = await self._join(message, key, address)
        except _Refusal as refusal:
            return await self._refused(message, key, address, refusal)
        except StoreUnavailable:
            return JoinRefused("unavailable", "the database of the management plane is unavailable; try again")
        except Exception:  # a bug that one node triggers must not block enrolment for all others
            log.exception("join.failed", node=_plain(message.node))
            self._failed(address)
            return JoinRefused("unavailable", "the management plane failed to handle this message; see its log")
        return joined

    async def _join(self, message: Join, key: str, address: str) -> Joined:
        control_url, events_url = _checked(message, key, address)
        by = replace(PLANE, actor=f"node:{message.node}"[:128], source=address)
        async with self._changes.begin(by) as change:
            row = await nodes.by_key(change.session, key)
            new = row is None
            if row is None:
                row = await self._admit(change, message, key)
            elif row.name != message.node:
                raise _Refusal(
                    "name_taken", f"this node's key belongs to the node {row.name!r}; forget that node first"
                )
            before = (row.control_url, row.events_url)
            row.control_url, row.events_url = control_url, events_url
            row.reported_labels, row.release = message.labels or None, message.release[:128]
            if not new and before != (control_url, events_url):
                urls = {"control_url": control_url, "events_url": events_url}
                change.noted(
                    "moved",
                    "node",
                    row.name,
                    dict(zip(urls, before, strict=True)),
                    urls,
                    event=NodeMoved(control_url, events_url),
                    node=row.name,
                )
        self._add_to_fleet(row)
        return self._reply(row)

    def _reply(self, row: NodeRow) -> Joined:
        managers = [self._keys().public]
        try:
            next_key = self._next_key()
        except SettingsError as error:  # must not prevent a node from joining
            log.warning("keys.next_unreadable", reason=str(error))
            next_key = ""
        if next_key:
            managers.append(next_key)
        return Joined(row.name, managers, row.control_url, row.events_url, next_key=next_key)

    async def _admit(self, change: Change, message: Join, key: str) -> NodeRow:
        """Enrol an unknown node by its token. Raises _Refusal."""
        if not message.token:
            raise _Refusal(
                "unknown_node", "the node is unknown to this management plane, or was removed; join with a token"
            )
        token = await enrolment.claim(change.session, message.token)
        if (row := await nodes.by_key(change.session, key)) is not None and row.name == message.node:
            return row  # the node asked another manager, too, which held the token until now
        expected = "" if token is None else token.hash
        if not hmac.compare_digest(sha256(message.secret).hexdigest(), expected) or token is None:
            raise _Refusal("bad_token", "the join token does not exist, or no longer exists")
        if token.expires_at is not None and token.expires_at <= change.now:
            raise _Refusal("token_expired", "the join token has expired; ask for another one")
        if token.uses_left == 0:
            raise _Refusal("token_used_up", "the join token has no uses left; ask for another one")
        if await change.session.get(NodeRow, message.node) is not None:
            raise _Refusal(
                "name_taken",
                f"another node is named {message.node!r}: give this node another name (dataplane.node), or forget the "
                f"other one (`larder nodes delete {message.node}`) if it is gone for good",
            )
        if token.uses_left is not None:
            token.uses_left -= 1
        token.last_used_at = change.now
        row = NodeRow(
            name=message.node,
            control_url="",
            events_url="",
            epoch="",
            pid=0,
            release="",
            engine_socket="",
            capacity_bytes=0,
            labels=token.labels,
            public_key=key,
            joined_by=token.id,
            first_seen_at=change.now,
            seen_at=change.now,
        )
        change.session.add(row)
        after = {"public_key": key, "token": token.id, "labels": {**message.labels, **(token.labels or {})}}
        change.noted("join", "node", row.name, None, after, event=NodeEnrolled(token.id), node=row.name)
        return row

    def _add_to_fleet(self, row: NodeRow) -> None:
        """Add the node to the fleet at once; its session starts by itself."""
        node = self._fleet.nodes.get(row.name)
        if node is None or node.public_key != row.public_key:
            self._fleet.nodes[row.name] = stored_node(row, time.monotonic())
        else:
            apply_row(node, row)
            node.reported_labels = dict(row.reported_labels or {})
        self._fleet.change_signal.notify()

    async def _refused(self, message: Join, key: str, address: str, refusal: _Refusal) -> JoinRefused:
        """Refuse a join. The refusal is logged and audited, within the rate limit."""
        if wait_s := self._failed(address):
            return _rate_limited(wait_s)
        name = _plain(message.node)
        log.warning("join.refused", node=name, address=address, code=refusal.code, reason=str(refusal))
        by = replace(PLANE, actor="(joining)", source=address)
        request = {"public_key": key, "token": _plain(message.token)}
        try:
            await self._changes.denied("join", "node", name, request, by, f"{refusal.code}: {refusal}")
        except StoreUnavailable:
            log.warning("join.not_audited", node=name)
        return JoinRefused(refusal.code, str(refusal))

    def _failed(self, address: str) -> float:
        """Count a failure, and return the seconds for which this address is ignored; 0 while it has not failed too
        often."""
        now = time.monotonic()
        wait_s = self._throttle.count(address, now)
        if wait_s:
            self._ignored_until = {ignored: until for ignored, until in self._ignored_until.items() if until > now}
            self._ignored_until[address] = now + wait_s
        return wait_s


def _plain(text: str) -> str:
    """Return text from an unauthenticated peer, escaped for logs and the audit."""
    return ascii(text[:128])[1:-1][:128]


def _rate_limited(wait_s: float) -> JoinRefused:
    return JoinRefused("rate_limited", f"too many refused requests; try again in {math.ceil(wait_s)} s")


def _checked(message: Join, key: str, address: str) -> tuple[str, str]:
    """Return the control and events URL as the management plane reaches them. Raises _Refusal."""
    if not key:
        raise _Refusal("malformed", "expected a connection that proves a key")
    if message.version != VERSION:
        raise _Refusal("version_mismatch", f"expected version {VERSION} of joining, got {message.version}")
    name = message.node
    if not 1 <= len(name) <= MAX_NAME_CHARACTERS or not is_printable(name) or "/" in name:
        raise _Refusal("bad_field", f"node: expected 1 to {MAX_NAME_CHARACTERS} printable characters without '/'")
    if message.token and not _TOKEN_ID.match(message.token):
        raise _Refusal("bad_token", "the join token does not exist, or no longer exists")
    if not is_printable(message.release):
        raise _Refusal("bad_field", "release: expected printable characters")
    if fault := label_rules.fault(message.labels):
        raise _Refusal("bad_field", f"labels: {fault}")
    return (
        _reachable("control_url", message.control_url, address),
        _reachable("events_url", message.events_url, address),
    )


def _reachable(field: str, url: str, address: str) -> str:
    """Return a node's endpoint as it is reached from here. A remote node must not direct Larder to sockets of this
    machine."""
    if fault := url_fault(url):
        raise _Refusal("bad_field", f"{field}: {fault}")
    if host_of(url) in WILDCARD_HOSTS:
        url = with_host(url, f"[{address}]" if ":" in address else address or "127.0.0.1")
    if is_loopback(url) and not _is_here(address):
        raise _Refusal(
            "bad_field",
            f"{field}: {url!r} cannot be reached from the management plane; set it to tcp://0.0.0.0:PORT, or say with "
            f"dataplane.advertise_{field} where it is reached",
        )
    return url


def _is_here(address: str) -> bool:
    if not address:
        return True
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _name(text: str) -> str:
    """Check the name of a join token. Raises ValueError."""
    if len(text) > MAX_NAME_CHARACTERS or not is_printable(text):
        raise ValueError(f"expected at most {MAX_NAME_CHARACTERS} printable characters")
    return text


def _answer(row: JoinTokenRow, joined: list[str]) -> JoinTokenAnswer:
    return answer(JoinTokenAnswer, row, labels=row.labels or {}, nodes=joined)


def _audited(row: JoinTokenRow) -> dict[str, object]:
    """Return the fields that an audit entry keeps: never the secret or its hash."""
    return {"name": row.name, "labels": row.labels, "uses_left": row.uses_left, "expires_at": row.expires_at}
