"""Fleet membership of this node: joining, the saved result of a join, and the managers that may connect.

A node joins once, with a token. The result is kept next to the node's key, so later starts need no token: the node then
only announces its addresses, at once and periodically. If the first join is refused, the data plane ends. A node that
has been in a fleet goes on serving engines, whatever the management plane answers.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import structlog
import zmq

from dataplane import __version__
from dataplane.base.durable_files import replace_file
from dataplane.base.secret_file import SecretFileExposed, read_secret
from dataplane.base.settings import SettingsError
from dataplane.protocol.join import (
    MAX_ADDRESSES,
    MAX_MANAGERS,
    PASSING,
    VERSION,
    BadToken,
    Join,
    Joined,
    JoinRefused,
    JoinToken,
    host_of,
    is_key,
    is_loopback,
    parse_token,
    url_fault,
)
from dataplane.settings import DataPlaneSettings, joined_file
from dataplane.sockets.curve import BadKeyFile, Gate, key_pair
from dataplane.sockets.join import JoinLink

STEP_S = 0.05
ANSWER_S = 3.0
FIRST_RETRY_S = 0.5
MAX_RETRY_S = 30.0
ANNOUNCE_S = 300.0
"""Interval at which a member announces its addresses, so that a management plane that lost its database learns of it
again."""
ASK_SOON_S = 0.5
"""Delay before the node asks again after a management plane disconnected: it may have forgotten this node and has no
way to tell it."""
ASK_AGAIN_S = 5.0
"""Minimum interval between two such requests, however often connections open and close."""
MAX_TOKEN_FILE_BYTES = 16 * 1024

log = structlog.stdlib.get_logger()


class JoinFailed(Exception):
    """The node's join was refused, and it has never been in a fleet."""


class JoinedFleet(msgspec.Struct, frozen=True):
    """Result of a join, kept as JSON in the state directory."""

    node: str
    key: str
    """Public key of the management plane's join socket."""
    addresses: list[str]
    managers: list[str]
    """Public keys of the managers that may connect to this node."""
    next_key: str = ""
    """Next public key of the join socket, if a change is planned; otherwise ""."""
    refused: str = ""
    """Reason why the management plane no longer knows this node; "" while it does."""


class Membership:
    """Joins a fleet, or announces the node, after `begin`; each `step` makes some progress."""

    def __init__(
        self,
        settings: DataPlaneSettings,
        context: zmq.Context[zmq.Socket[bytes]],
        token: JoinToken | None,
        fleet: JoinedFleet | None,
    ) -> None:
        self._settings = settings
        self._context = context
        self._token = token
        self._fleet = fleet
        self._path = joined_file(settings.common.state_dir)
        try:
            self._pair = key_pair(self._path.with_name("curve.key"))
        except BadKeyFile as error:
            raise SettingsError(str(error)) from None
        self.gate = Gate(context, self._pair)
        self._by_token = token is not None and (fleet is None or fleet.key != token.key)
        self._saved = fleet
        """Contents of the file."""
        if token is not None and self._fleet is not None and not self._by_token:
            # The node is already enrolled there, so it needs no token, but the token holds the current addresses.
            addresses = list(dict.fromkeys([*token.addresses, *self._fleet.addresses]))[:MAX_ADDRESSES]
            self._fleet = msgspec.structs.replace(self._fleet, addresses=addresses)
        self._admit()
        self._link: JoinLink | None = None
        self._tries = 0
        self._next_at = 0.0
        self._reported = ""
        self._answered = False
        """The management plane has answered since this process began."""
        self._requested_at = 0.0
        self._requested_key = ""
        """Public key of the management plane whose answer is awaited."""
        self._node = self._control_url = self._events_url = ""

    def begin(self, node: str, control_url: str, events_url: str) -> None:
        """Set the URLs to which the sockets are bound; the first `step` sends them to the management plane."""
        table = self._settings.table
        self._node = node
        self._control_url = table.advertise_control_url or control_url
        self._events_url = table.advertise_events_url or events_url

    def on_departure(self) -> None:
        """Ask soon whether this node is still enrolled, because a peer of the control socket has disconnected."""
        if self._link is None and self._answered:
            soon = max(time.monotonic() + ASK_SOON_S, self._requested_at + ASK_AGAIN_S)
            self._next_at = min(self._next_at, soon)

    def step(self) -> Joined | None:
        """Send a request, process an answer, or give up a request. Never blocks. Return the answer if the node has
        joined. Raises JoinFailed if the first join was refused."""
        now = time.monotonic()
        if self._link is None:
            if now >= self._next_at:
                self._request_join(now)
            return None
        answer = self._link.answer()
        if answer is None and now < self._next_at:
            return None
        url = self._link.url
        self._close_link()
        if isinstance(answer, Joined):
            return answer if self._joined(answer, now) else None
        if isinstance(answer, JoinRefused):
            self._refused(answer, now)
        else:
            reason = f"{url} did not answer: it is unreachable, or does not hold the key in the token"
            self._later(now, "join.unanswered", reason)
        return None

    # ---- asking

    def _request_join(self, now: float) -> None:
        if self._by_token:
            assert self._token is not None
            endpoints = [(self._token.key, address) for address in self._token.addresses]
            ident, secret = self._token.id, self._token.secret
        else:
            assert self._fleet is not None
            keys = [self._fleet.key, self._fleet.next_key] if self._fleet.next_key else [self._fleet.key]
            endpoints = [(key, address) for key in keys for address in self._fleet.addresses]
            ident, secret = "", b""
        message = Join(
            version=VERSION,
            node=self._node,
            release=__version__,
            labels=self._settings.table.labels,
            control_url=self._control_url,
            events_url=self._events_url,
            token=ident,
            secret=secret,
        )
        self._requested_key, url = endpoints[self._tries % len(endpoints)]
        try:
            self._link = JoinLink(self._context, url, self._requested_key, self._pair, message)
        except zmq.ZMQError as error:
            self._later(now, "join.failed", f"{url}: {error}")
            return
        self._requested_at, self._next_at = now, now + ANSWER_S

    def _later(self, now: float, event: str, reason: str) -> None:
        self._tries += 1
        self._next_at = now + min(FIRST_RETRY_S * 2 ** min(self._tries - 1, 16), MAX_RETRY_S)
        if reason != self._reported:  # log an outage once, not every half minute
            self._reported = reason
            log.warning(event, reason=reason, effect="retried until it answers; engines are served")

    # ---- answers

    def _joined(self, answer: Joined, now: float) -> bool:
        """Keep what a join returned. Return False if it is not valid."""
        managers = [key for key in answer.managers if is_key(key)]
        if not managers or len(answer.managers) > MAX_MANAGERS:
            self._later(now, "join.failed", "the management plane sent no valid manager key")
            return False
        if self._by_token:
            assert self._token is not None
            addresses = self._token.addresses
        else:
            assert self._fleet is not None
            addresses = self._fleet.addresses
        key = self._requested_key
        fleet = JoinedFleet(
            node=self._node,
            key=key,
            addresses=addresses,
            managers=managers,
            next_key=answer.next_key if is_key(answer.next_key) and answer.next_key != key else "",
        )
        if self._fleet is not None and self._fleet.key != key:
            log.info("fleet.key_changed", key=key, before=self._fleet.key)
        if fleet != self._saved:
            self._keep(fleet)
        if self._by_token or self._reported:
            log.info("node.in_fleet", node=self._node, control_url=answer.control_url, events_url=answer.events_url)
        self._fleet, self._by_token, self._reported, self._tries = fleet, False, "", 0
        self._answered = True
        self._next_at = now + ANNOUNCE_S
        self._admit()
        return True

    def _keep(self, fleet: JoinedFleet) -> None:
        """Save the join. If that fails, the next start needs a token, but this process stays in the fleet."""
        try:
            replace_file(self._path, msgspec.json.encode(fleet))
            self._saved = fleet
        except OSError as error:
            log.warning("fleet.not_saved", reason=error.strerror, effect="the next start needs a join token")

    def _refused(self, answer: JoinRefused, now: float) -> None:
        reason = f"{answer.code}: {answer.message}"[:500]
        if answer.code in PASSING:
            self._later(now, "join.put_off", reason)
        elif answer.code == "unknown_node" and self._token is not None and not self._by_token and not self._answered:
            self._answered = self._by_token = True  # forgotten, and restarted with a token
            self._admit()
            self._next_at = now
        elif self._fleet is None:
            self._next_at = float("inf")
            raise JoinFailed(f"the management plane refused this node: {reason}")
        else:
            self._by_token, self._answered, self._tries = False, True, 0
            self._admit()
            self._next_at = now + ANNOUNCE_S
            if reason == self._reported:
                return
            self._reported = reason
            self._fleet = msgspec.structs.replace(self._fleet, refused=reason)
            self._keep(self._fleet)
            log.error(
                "node.forgotten" if answer.code == "unknown_node" else "join.refused",
                node=self._node,
                reason=reason,
                effect="engines are served by what is in force; to join again, start with a new token",
            )

    @property
    def managers(self) -> list[str]:
        """Public keys of the managers that may connect."""
        return [] if self._fleet is None else self._fleet.managers

    def _admit(self) -> None:
        self.gate.admit(self.managers, undecided=self._by_token)

    def _close_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def close(self) -> None:
        self._close_link()
        self.gate.close()


def membership(settings: DataPlaneSettings, context: zmq.Context[zmq.Socket[bytes]]) -> Membership | None:
    """Return the membership from the settings and the state directory; None for a node without a fleet. Raises
    SettingsError."""
    token, fleet = _token(settings), _fleet(settings)
    if token is None and fleet is None:
        return None
    _check_reachable(settings, token.addresses if token is not None else [])
    return Membership(settings, context, token, fleet)


def _token(settings: DataPlaneSettings) -> JoinToken | None:
    path = settings.table.join_token_file
    if not path:
        return None
    try:
        return parse_token(read_secret(Path(path).expanduser(), MAX_TOKEN_FILE_BYTES).decode("ascii"))
    except SecretFileExposed as error:
        raise SettingsError(f"dataplane.join_token_file: {error}") from None
    except FileNotFoundError:
        if joined_file(settings.common.state_dir).exists():
            return None  # only the first start needs it
        raise SettingsError(f"dataplane.join_token_file: {path} does not exist") from None
    except OSError as error:
        raise SettingsError(f"dataplane.join_token_file: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"dataplane.join_token_file: {path}: expected text") from None
    except BadToken as error:
        raise SettingsError(f"dataplane.join_token_file: {path}: {error}") from None


def _fleet(settings: DataPlaneSettings) -> JoinedFleet | None:
    path = joined_file(settings.common.state_dir)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        fleet = msgspec.json.decode(data, type=JoinedFleet)
    except (msgspec.DecodeError, ValueError, RecursionError):
        fleet = None
    keys = [] if fleet is None else [fleet.key, *fleet.managers, *filter(None, [fleet.next_key])]
    if fleet is not None and all(map(is_key, keys)) and fleet.addresses and not any(map(url_fault, fleet.addresses)):
        return fleet
    if settings.table.join_token_file:
        log.warning("fleet.set_aside", file=str(path), effect="the node joins by its token")
        path.replace(path.with_suffix(".corrupt"))
        return None
    raise SettingsError(f"{path}: does not say which fleet this node is in; remove it and give a join token")


def _check_reachable(settings: DataPlaneSettings, addresses: list[str]) -> None:
    """Raise SettingsError if the management plane is on another machine and cannot reach the node's sockets."""
    if not any(host_of(address) and not is_loopback(address) for address in addresses):
        return
    common, table = settings.common, settings.table
    for name, port, url in (
        ("control_url", 8472, table.advertise_control_url or common.control_url),
        ("events_url", 8473, table.advertise_events_url or common.events_url),
    ):
        if is_loopback(url):
            raise SettingsError(
                f"{name}: {url!r} cannot be reached from the management plane at {addresses[0]}; "
                f"set for instance LARDER_{name.upper()}=tcp://0.0.0.0:{port}"
            )
