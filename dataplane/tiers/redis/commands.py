"""Commands on one block: the bytes to send, how the reply is read, and what it means."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from dataplane.protocol.stored_blocks import BlockName, Buffer, Loaded, Outcome, StoredBlock
from dataplane.tiers.header import HEADER_BYTES
from dataplane.tiers.redis.connection import BlockConnection, refusal, server
from dataplane.tiers.redis.parameters import Address, port_number
from dataplane.tiers.redis.resp import END, ErrorReply, Reply, ReplyReader, packed, packed_word
from dataplane.tiers.tier import BlockLoad, BlockStore, TierError
from dataplane.tiers.values import read_header, value_name, value_size, verify

ASKING = packed(b"ASKING")


class Redirect(Exception):
    """Another server of the cluster holds the key."""

    def __init__(self, address: Address, *, asking: bool) -> None:
        super().__init__(address)
        self.address = address
        self.asking = asking
        """Whether the key is being moved, so that its command needs `ASKING` in front of it."""


class Command(ABC):
    """A command for the value of one block."""

    other_type = Outcome.MISSING
    """The outcome if the key has a value of another type, which no node wrote."""

    def __init__(self, name: BlockName, cluster: bytes) -> None:
        self.name = name
        self.cluster = cluster
        self.key = value_name(cluster, name).encode()
        self.outcome = Outcome.FAILED
        self.in_flight = 0
        """Bytes of the block that are under way until the reply has come."""

    @abstractmethod
    def pieces(self) -> Sequence[Buffer]:
        """Return the bytes to send."""

    def read(self, connection: BlockConnection, deadline: float) -> None:
        """Read the reply and set the outcome. Raises Redirect, TierError and the exceptions of `resp`."""
        reply = self._receive(connection.replies, deadline)
        if isinstance(reply, ErrorReply):
            self.outcome = self._refused(reply, connection.address)
        else:
            self.outcome = self._answered(reply)

    def _receive(self, replies: ReplyReader, deadline: float) -> Reply:
        return replies.read_short(deadline)

    @abstractmethod
    def _answered(self, reply: Reply) -> Outcome:
        """Return the outcome for a reply that is no error. Raises ValueError for one that the command never gets."""

    def _refused(self, error: ErrorReply, address: Address) -> Outcome:
        """Return the outcome for an error that the server answered. Raises Redirect, TierError."""
        if error.code in {"MOVED", "ASK"}:
            host, _, port = error.message.partition(" ")[2].rpartition(":")
            raise Redirect((host or address[0], port_number(int(port))), asking=error.code == "ASK")
        sentence = refusal(error)
        if sentence:
            raise TierError(f"{server(address)}: {sentence}")
        return {"OOM": Outcome.FULL, "WRONGTYPE": self.other_type}.get(error.code, Outcome.FAILED)


class StoreCommand(Command):
    """SET: store a header and data as one value."""

    def __init__(self, store: BlockStore, header: bytes, cluster: bytes, ttl_s: int) -> None:
        super().__init__(store.block.name, cluster)
        self._header = header
        self._data = memoryview(store.data).cast("B")
        self._ttl_s = ttl_s
        self.in_flight = value_size(len(self._data))

    def pieces(self) -> Sequence[Buffer]:
        value = b"$%d\r\n%b" % (value_size(len(self._data)), self._header)
        if not self._ttl_s:
            return [packed(b"SET", self.key, following=1) + value, self._data, END]
        expiry = b"".join(map(packed_word, (b"EX", b"%d" % self._ttl_s)))
        return [packed(b"SET", self.key, following=3) + value, self._data, END + expiry]

    def _answered(self, reply: Reply) -> Outcome:
        if reply != b"OK":
            raise ValueError("expected OK")
        return Outcome.OK


class LoadCommand(Command):
    """GET, or GETEX where blocks expire: load a value into memory and verify it."""

    def __init__(self, load: BlockLoad, cluster: bytes, ttl_s: int) -> None:
        super().__init__(load.name, cluster)
        self._into = load.into.cast("B")
        self._ttl_s = ttl_s
        self._block: StoredBlock | None = None
        self.in_flight = value_size(len(self._into))

    @property
    def loaded(self) -> Loaded:
        """The result of the load."""
        return Loaded(self.outcome, self._block)

    def pieces(self) -> Sequence[Buffer]:
        if self._ttl_s:
            return [packed(b"GETEX", self.key, b"EX", b"%d" % self._ttl_s)]
        return [packed(b"GET", self.key)]

    def _receive(self, replies: ReplyReader, deadline: float) -> Reply:
        header = memoryview(bytearray(HEADER_BYTES))
        reply = replies.read_value(header, self._into, deadline)
        if reply == self.in_flight:
            self._block = verify(header, self._into, self.cluster, self.name)
        return reply

    def _answered(self, reply: Reply) -> Outcome:
        if reply is None:
            return Outcome.MISSING
        return Outcome.OK if self._block else Outcome.CORRUPT


class LookupCommand(Command):
    """GETRANGE: read the header alone."""

    block: StoredBlock | None = None
    other_type = Outcome.CORRUPT

    def pieces(self) -> Sequence[Buffer]:
        return [packed(b"GETRANGE", self.key, b"0", b"%d" % (HEADER_BYTES - 1))]

    def _answered(self, reply: Reply) -> Outcome:
        if not isinstance(reply, bytes):
            raise ValueError("expected a string")
        self.block = read_header(reply, self.cluster, self.name)
        return Outcome.OK if self.block else Outcome.CORRUPT if reply else Outcome.MISSING


class DeleteCommand(Command):
    """UNLINK: delete a value."""

    def pieces(self) -> Sequence[Buffer]:
        return [packed(b"UNLINK", self.key)]

    def _answered(self, reply: Reply) -> Outcome:
        if not isinstance(reply, int):
            raise ValueError("expected a number")
        return Outcome.OK
