"""Numbers for spaces: engines attach with identities, everything after that says a small number."""

from __future__ import annotations

from dataclasses import dataclass, field

from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.spaces import Space, check_space

MAX_SPACES = 65_536


@dataclass(slots=True)
class Spaces:
    """Spaces that engines have or blocks are in; numbers are never reused."""

    by_number: dict[int, Space] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)
    _by_model: dict[str, list[int]] = field(default_factory=dict)
    _last: int = 0

    def check(self, space: Space, field_name: str) -> None:
        """Raises ProtocolError when the space is wrong in itself or contradicts one that attached before."""
        check_space(space, field_name)
        number = self._numbers.get(space.identity())
        if number is None:
            if len(self.by_number) >= MAX_SPACES:
                raise ProtocolError(Code.BAD_SPACE, f"expected at most {MAX_SPACES} spaces", field_name)
            return
        known = self.by_number[number]
        if space.block_bytes != known.block_bytes:
            raise ProtocolError(
                Code.SPACE_CONFLICT,
                f"this space is attached with blocks of {known.block_bytes} bytes, got {space.block_bytes}",
                f"{field_name}.block_bytes",
            )

    def number(self, space: Space) -> int:
        """The space's number; given on first sight. The space was checked."""
        identity = space.identity()
        number = self._numbers.get(identity)
        if number is None:
            self._last += 1
            number = self._numbers[identity] = self._last
            self.by_number[number] = space
            self._by_model.setdefault(space.model, []).append(number)
        return number

    def forget(self, number: int) -> None:
        """Forget a space without engines and blocks."""
        space = self.by_number.pop(number)
        del self._numbers[space.identity()]
        numbers = self._by_model[space.model]
        numbers.remove(number)
        if not numbers:
            del self._by_model[space.model]

    def of_model(self, model: str) -> list[int]:
        """Numbers of a model's spaces."""
        return self._by_model.get(model, [])

    def model(self, number: int) -> str:
        return self.by_number[number].model
