"""The interface of codecs."""

from typing import NamedTuple, Protocol

from dataplane.protocol.stored_blocks import BlockForm, Buffer, Encoding


class EncodedBlock(NamedTuple):
    """The bytes of a block to store, and how they are encoded."""

    encoding: Encoding
    data: Buffer


class NotEncoded(Exception):
    """The block cannot be encoded, so it is stored as it is. `reason` is `dtype`, `heads`, `values` or `size`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class DecodeError(ValueError):
    """The stored bytes contradict their header, or do not decode to a block of this length."""


class BlockCodec(Protocol):
    """Encodes and decodes blocks. Several threads of a tier call its methods at the same time."""

    @property
    def number(self) -> int:
        """Number in headers, 1 to 255."""
        ...

    @property
    def lossless(self) -> bool:
        """Whether the decoded bytes equal the block. The header of a lossless codec has the checksum of the block, that
        of a lossy codec has the checksum of the encoded bytes."""
        ...

    def encode(self, data: Buffer, form: BlockForm) -> EncodedBlock:
        """Encode a block into fewer bytes than it has. Raises NotEncoded if that is not possible."""
        ...

    def decode(self, encoding: Encoding, data: Buffer, into: memoryview) -> None:
        """Decode into memory of exactly the block's size. Allocates at most about as many bytes as the block has,
        whatever the data contain. Raises DecodeError; the memory may then hold any bytes."""
        ...
