"""The tier `redis`: `dataplane.tiers.tier.Tier` over Redis or Valkey."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from typing import TypeVar

from dataplane.protocol.stored_blocks import BlockName, Loaded, Outcome, StoredBlock
from dataplane.tiers.redis.commands import (
    ASKING,
    Command,
    DeleteCommand,
    LoadCommand,
    LookupCommand,
    Redirect,
    StoreCommand,
)
from dataplane.tiers.redis.connection import BlockConnection, refusal, server
from dataplane.tiers.redis.parameters import Address, RedisParameters
from dataplane.tiers.redis.resp import ErrorReply
from dataplane.tiers.redis.servers import RedisServers
from dataplane.tiers.registry import TierContext
from dataplane.tiers.shared import SharedTier
from dataplane.tiers.tier import BlockLoad, BlockStore, TierError, TierHealth
from dataplane.tiers.values import packed_header, value_prefix, value_size

C = TypeVar("C", bound=Command)
Lost = (ConnectionError, ValueError)
"""How a connection ends besides TimeoutError: closed, or with bytes that are not of the protocol."""

_MAX_REDIRECTS = 3
_MAX_FRUITLESS = 2
_SCAN_TIMEOUT_S = 30.0
_SCAN_COUNT = 256
_MIN_SLICE_BYTES = 4 * 1024 * 1024


class RedisTier(SharedTier):
    """Blocks in Redis or Valkey. See `Tier` for the methods."""

    def __init__(self, parameters: RedisParameters, context: TierContext) -> None:
        """Make no connection yet: the calls do."""
        super().__init__(context, parameters.ttl_s)
        self._parameters = parameters
        self._prefix = value_prefix(context.cluster).encode()
        self._servers = RedisServers(parameters)
        self._threads = ThreadPoolExecutor(max_workers=4 * parameters.connections, thread_name_prefix="redis-tier")

    def lookup(self, names: Sequence[BlockName], deadline: float) -> list[StoredBlock | None]:
        return self._headers(names, deadline)[0]

    def _headers(self, names: Sequence[BlockName], deadline: float) -> tuple[list[StoredBlock | None], list[Outcome]]:
        commands = self._execute([LookupCommand(name, self._cluster) for name in names], deadline)
        return [command.block for command in commands], [command.outcome for command in commands]

    def _store(self, stores: Sequence[BlockStore], deadline: float) -> list[Outcome]:
        outcomes = [Outcome.FAILED] * len(stores)
        admitted: dict[int, StoreCommand] = {}
        for number, store in enumerate(stores):
            header = packed_header(store, self._cluster)
            if header is None:
                continue
            if self._written.reserve(store.block.name, value_size(store.block.length)):
                admitted[number] = StoreCommand(store, header, self._cluster, self._parameters.ttl_s)
            else:
                outcomes[number] = Outcome.FULL
        try:
            self._execute(list(admitted.values()), deadline)
        finally:
            for number, command in admitted.items():
                outcomes[number] = command.outcome
                if command.outcome is Outcome.OK:
                    self._written.commit(command.name, command.in_flight)
                else:
                    self._written.cancel(command.in_flight)
        return outcomes

    def load(self, loads: Sequence[BlockLoad], deadline: float) -> list[Loaded]:
        commits = self._written.commits()
        commands = self._execute([LoadCommand(load, self._cluster, self._parameters.ttl_s) for load in loads], deadline)
        names = [load.name for load in loads]
        self._count_loads(names, [command.outcome for command in commands], commits, deadline)
        return [command.loaded for command in commands]

    def _delete(self, names: Sequence[BlockName], deadline: float) -> list[Outcome]:
        commands = self._execute([DeleteCommand(name, self._cluster) for name in names], deadline)
        return [command.outcome for command in commands]

    def blocks(self, deadline: float = inf) -> Iterator[StoredBlock]:
        try:
            addresses = self._servers.addresses(min(deadline, time.monotonic() + _SCAN_TIMEOUT_S))
        except TimeoutError:
            raise TierError("no Redis server answered") from None
        self._written.begin_listing()
        for address in addresses:
            cursor = before = 0
            while True:
                before, (cursor, names) = cursor, self._scan(address, cursor, deadline)
                if cursor and cursor == before:
                    raise TierError(f"{server(address)}: SCAN answers with the cursor that it was sent")
                until = min(deadline, time.monotonic() + _SCAN_TIMEOUT_S)
                yield from self._written.listed(names, partial(self._headers, names, until), self._writer, until)
                if not cursor:
                    break

    def health(self, deadline: float) -> TierHealth:
        try:
            servers = self._servers.addresses(deadline)
        except TierError as error:
            return TierHealth(ok=False, reason=str(error))
        except TimeoutError:
            return TierHealth(ok=False, reason="no Redis server answered by the deadline")
        failures = [failure for address in servers if (failure := self._ping(address, deadline))]
        return TierHealth(ok=len(failures) < len(servers), reason="; ".join(failures))

    def close(self) -> None:
        self._servers.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ping(self, address: Address, deadline: float) -> str:
        """Return what is wrong with a server, "" for nothing."""
        try:
            with self._servers.connected(address, deadline) as connection:
                reply = connection.execute(b"PING", deadline=deadline)
        except TierError as error:
            return str(error)
        except (TimeoutError, *Lost):
            self._servers.drop_idle(address)
            return f"{server(address)}: no valid answer to PING by the deadline"
        sentence = refusal(reply) if isinstance(reply, ErrorReply) and reply.code != "NOPERM" else None
        return f"{server(address)}: {sentence}" if sentence else ""

    def _scan(self, address: Address, cursor: int, deadline: float) -> tuple[int, list[BlockName]]:
        """Return the next cursor, 0 at the end, and some names of blocks that a server holds."""
        words = (b"SCAN", b"%d" % cursor, b"MATCH", self._prefix + b"*", b"COUNT", b"%d" % _SCAN_COUNT)
        until = min(deadline, time.monotonic() + _SCAN_TIMEOUT_S)
        try:
            with self._servers.connected(address, until) as connection:
                reply = connection.execute(*words, deadline=until)
                match reply:
                    case [bytes(following), [*keys]]:
                        texts = [key.decode("ascii", errors="replace") for key in keys if isinstance(key, bytes)]
                        return int(following), [name for text in texts if (name := self._named(text)) is not None]
                    case ErrorReply():
                        raise TierError(f"{server(address)}: {refusal(reply) or 'SCAN was refused'}")
                    case _:
                        raise ValueError("expected a cursor and a list of keys")
        except (TimeoutError, *Lost):
            raise TierError(f"{server(address)}: no valid answer to SCAN") from None

    # --- sending commands -------------------------------------------------------------------------------------------

    def _execute(self, commands: Sequence[C], deadline: float) -> Sequence[C]:
        """Send commands to the servers that hold their keys and wait for the replies, until the deadline.

        Commands of a server that did not answer stay FAILED. Raises TierError if no server of the tier is left.
        """
        if not commands:
            return commands
        try:
            if time.monotonic() >= deadline:
                raise TimeoutError
            holders = self._servers.holders([command.key for command in commands], deadline)
        except TimeoutError:
            for command in commands:
                command.outcome = Outcome.LATE
            return commands
        slices = self._slices(commands, holders)
        if len(slices) == 1:
            failures = [self._execute_slice(*slices[0], deadline)]
        else:
            try:
                running = [
                    self._threads.submit(self._execute_slice, address, part, deadline) for address, part in slices
                ]
            except RuntimeError:
                raise TierError("the tier is closed") from None
            failures = [future.result() for future in running]
        failed = {address: failure for (address, _), failure in zip(slices, failures, strict=True) if failure}
        if all(failures) and failed.keys() >= self._servers.last_addresses():
            raise next(iter(failed.values()))
        return commands

    def _slices(self, commands: Sequence[Command], holders: Sequence[Address]) -> list[tuple[Address, list[Command]]]:
        """Divide commands by server, and those of a server among connections if they are worth more than one."""
        by_server: dict[Address, list[Command]] = {}
        for command, address in zip(commands, holders, strict=True):
            by_server.setdefault(address, []).append(command)
        slices = []
        for address, group in by_server.items():
            size = sum(command.in_flight for command in group)
            count = max(1, min(self._parameters.connections, len(group), size // _MIN_SLICE_BYTES))
            slices += [(address, group[first::count]) for first in range(count)]
        return slices

    def _execute_slice(self, address: Address, commands: list[Command], deadline: float) -> TierError | None:
        """Execute commands at one server. Returns why the server is not usable, or None.

        A connection that is lost is replaced: it may have been idle while the server restarted. The second one in a
        row that gives no reply is the last.
        """
        answered: list[Command] = []
        fruitless = 0
        while fruitless < _MAX_FRUITLESS:
            before = len(answered)
            remaining = commands[len(answered) :]
            try:
                with self._servers.connected(address, deadline) as connection:
                    self._exchange(connection, remaining, answered, deadline)
                return None
            except TimeoutError:
                for command in commands[len(answered) :]:
                    command.outcome = Outcome.LATE
                return None
            except TierError as error:
                self._servers.forget()
                return error
            except Lost:
                self._servers.drop_idle(address)
                fruitless = fruitless + 1 if len(answered) == before else 0
        self._servers.forget()
        return None

    def _exchange(
        self, connection: BlockConnection, commands: list[Command], answered: list[Command], deadline: float
    ) -> None:
        """Send commands ahead of their replies, within the bound on bytes in flight; append those with a reply."""
        sent = 0
        in_flight = 0
        moved: list[tuple[Command, Redirect]] = []
        for waiting in range(len(commands)):
            while sent < len(commands) and (
                sent == waiting or in_flight + commands[sent].in_flight <= self._parameters.max_in_flight_bytes
            ):
                connection.send(commands[sent].pieces(), deadline)
                in_flight += commands[sent].in_flight
                sent += 1
            command = commands[waiting]
            try:
                command.read(connection, deadline)
            except Redirect as redirect:
                if not self._parameters.cluster:  # the other server would get the password
                    raise TierError(
                        f"{server(connection.address)}: expected a server without a cluster, got a redirection to "
                        "another one: set cluster"
                    ) from None
                moved.append((command, redirect))
            in_flight -= command.in_flight
            answered.append(command)
        for command, first in moved:
            self._follow(command, first, deadline)

    def _follow(self, command: Command, first: Redirect, deadline: float) -> None:
        """Execute a command at the server that the cluster named; it stays FAILED if there is none."""
        current = first
        for _ in range(_MAX_REDIRECTS):
            if not current.asking:
                self._servers.forget()
            try:
                with self._servers.connected(current.address, deadline) as connection:
                    if current.asking:
                        connection.send([ASKING], deadline)
                        connection.replies.read_short(deadline)
                    connection.send(command.pieces(), deadline)
                    command.read(connection, deadline)
                return
            except Redirect as further:
                current = further
            except TimeoutError:
                command.outcome = Outcome.LATE
                return
            except (TierError, *Lost):
                return
