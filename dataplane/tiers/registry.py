"""Types of tiers, found by entry points of the group `larder.tiers`: parameters, their validation, and `open`.

An entry point names a `TierType`. Other packages can add types. If the package of a type cannot be imported, the error
is reported when the type is used, and the other types still work.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from dataplane.base.field_errors import described
from dataplane.protocol.tiers import TierSpec
from dataplane.tiers.codecs.codec import BlockCodec
from dataplane.tiers.header import CLUSTER_BYTES
from dataplane.tiers.tier import Tier, TierError

GROUP = "larder.tiers"
_CHECKED = re.compile(r"^(\w+): (.*)$", re.DOTALL)
"""Message of a check of several parameters: a ParameterError that the decoder wraps."""


class TierContext(msgspec.Struct, frozen=True):
    """What a node passes to a tier that it opens."""

    cluster: bytes
    """Identity of the cluster, 16 bytes. Blocks of other clusters are never served."""
    node: str
    """Name of the node."""
    budget_bytes: int
    """The most bytes that the tier may hold; 0 for no limit, where the type allows it."""
    cluster_name: str = ""
    """`tier_cluster` of the node, for messages."""

    def __post_init__(self) -> None:
        if len(self.cluster) != CLUSTER_BYTES:
            raise ParameterError("cluster", f"expected {CLUSTER_BYTES} bytes, got {len(self.cluster)}")
        if self.budget_bytes < 0:
            raise ParameterError("budget_bytes", f"expected 0 or more, got {self.budget_bytes}")


class TierType(NamedTuple):
    """A type of tiers."""

    parameters: type[msgspec.Struct]
    """Struct of the parameters; unknown fields must be forbidden."""
    open: Callable[[Any, TierContext], Tier]
    """Open a tier with parameters of that struct. Raises ParameterError or TierError."""
    shared: bool = False
    """Whether other nodes may write to the same store, so that the node must ask the store which blocks it holds."""
    check: Callable[[Any, int], None] = lambda parameters, budget_bytes: None
    """Raise ParameterError for parameters that do not fit the budget. Does no I/O."""
    codecs: Mapping[str, BlockCodec] = MappingProxyType({})
    """Codecs of the blocks that its tiers can hold, by the value of `compress`."""


class ParameterError(ValueError):
    """A parameter of a tier is not valid. The message begins with the field."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


def tier_types() -> list[str]:
    """Return the names of the types that are installed, sorted."""
    return sorted({point.name for point in entry_points(group=GROUP)})


@cache
def tier_type(name: str) -> TierType:
    """Return a type by its name. Raises ParameterError for `type` if there is none or it cannot be imported."""
    matches = entry_points(group=GROUP, name=name)
    if not matches:
        raise ParameterError("type", f"expected one of {', '.join(tier_types())}, got {name[:64]!r}")
    try:
        loaded = next(iter(matches)).load()
    except (ImportError, AttributeError) as error:
        raise ParameterError("type", f"{name} cannot be imported: {error}") from None
    if not isinstance(loaded, TierType):
        raise ParameterError("type", f"{name}: expected the entry point to name a TierType, got {loaded!r:.64}")
    return loaded


def is_shared(name: str) -> bool:
    """Return whether other nodes write to the stores of a type; False for an unknown type."""
    try:
        return tier_type(name).shared
    except ParameterError:
        return False


def codec_of(spec: TierSpec) -> BlockCodec | None:
    """Return the codec that a valid record names, or None for no codec."""
    return None if spec.compress == "none" else tier_type(spec.type).codecs[spec.compress]


def parse_parameters(name: str, parameters: object) -> msgspec.Struct:
    """Return the parameters, decoded from JSON, of a tier of the type. Raises ParameterError."""
    kind = tier_type(name).parameters
    try:
        return msgspec.convert(parameters, kind)
    except msgspec.ValidationError as error:
        if checked := _CHECKED.match(str(error)):
            raise ParameterError(checked[1], checked[2]) from None
        raise ParameterError(*described(str(error), kind)) from None


def tier_faults_of(spec: TierSpec) -> list[tuple[str, str]]:
    """Return the fields of a record that its type does not accept, and why. Does no I/O to the store."""
    try:
        tier_type(spec.type).check(parse_parameters(spec.type, spec.parameters), spec.budget_bytes)
    except ParameterError as error:
        message = str(error).removeprefix(f"{error.field}: ")
        is_record_field = error.field in ("type", "budget_bytes")
        field = error.field if is_record_field else ".".join(filter(None, ("parameters", error.field)))
        return [(field, message)]
    codecs = tier_type(spec.type).codecs
    if spec.compress != "none" and spec.compress not in codecs:
        return [("compress", _no_codec(spec, codecs))]
    return []


def _no_codec(spec: TierSpec, codecs: Mapping[str, BlockCodec]) -> str:
    expected = " or ".join(("none", *codecs))
    return f"expected {expected}: tiers of the type {spec.type} cannot compress with {spec.compress}"


def open_tier(name: str, parameters: object, context: TierContext) -> Tier:
    """Open a tier of the type. Raises ParameterError, or TierError if the tier is not usable."""
    parsed = parse_parameters(name, parameters)
    try:
        return tier_type(name).open(parsed, context)
    except OSError as error:
        raise TierError(f"{name}: {error}") from error
