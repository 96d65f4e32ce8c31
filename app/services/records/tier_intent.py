"""A requested tier, checked: sizes, bounds, and the parameters of its type where that is installed here.

Nodes check the rest: whether a directory can be created, and whether a secret can be read. A literal secret is refused.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from app.schemas.base.records import written
from app.schemas.records.tiers import TierAnswer, TierList, TierPut, TierRecord
from app.services.base import checks, literal_secrets
from app.services.records.record_types import PushedType, Values, checked, columns
from app.store.records import tiers
from app.store.records.tiers import TierRow
from dataplane.base.units import format_size
from dataplane.base.visible import is_printable
from dataplane.protocol.tiers import (
    MAX_BUDGET_BYTES,
    MAX_DEADLINE_S,
    MAX_IN_FLIGHT_BYTES,
    MAX_NAME_CHARACTERS,
    MAX_ORDER,
    MEMORY,
    MIN_IN_FLIGHT_BYTES,
    TierSpec,
)
from dataplane.tiers import registry

TIERS = PushedType(
    name="tiers",
    noun="tier",
    row=TierRow,
    sortable=tiers.SORTABLE,
    key="name",
    put=TierPut,
    answer=TierAnswer,
    listing=TierList,
    written=written(TierRecord),
)
MAX_PARAMETERS_BYTES = 16_384
"""Largest size of the parameters in MessagePack. The size of a snapshot is computed with it for every tier."""
MAX_DEPTH = 8
_MIN_INTEGER, _MAX_INTEGER = -(1 << 63), (1 << 63) - 1
_SIZES = {"budget_bytes": (1, MAX_BUDGET_BYTES), "max_bytes_in_flight": (MIN_IN_FLIGHT_BYTES, MAX_IN_FLIGHT_BYTES)}
_AS_GIVEN = ("order", "spill", "load_deadline_s", "compress", "note", "managed_by", "selector")


def resolve(name: str, intent: TierPut) -> Values:
    """Return the columns of the checked intent. Raises Invalid with every fault found."""
    faults = checks.Faults()
    if len(name) > MAX_NAME_CHARACTERS:
        faults.add("name", f"expected at most {MAX_NAME_CHARACTERS} characters, got {len(name)}")
    if name == MEMORY:
        faults.add("name", f"expected another name: {MEMORY!r} is reserved for the memory of the pool")
    for field in TierPut.REQUIRED:
        if getattr(intent, field) is msgspec.UNSET:
            faults.add(field, "expected a value")
    sizes = {field: faults.check(field, partial(_size, intent, field)) for field in _SIZES}
    if not 0 <= intent.order <= MAX_ORDER:
        faults.add("order", f"expected 0 to {MAX_ORDER:,}, got {intent.order}")
    if not 0 < intent.load_deadline_s <= MAX_DEADLINE_S:
        faults.add(
            "load_deadline_s",
            f"expected more than 0 and at most {MAX_DEADLINE_S:g} seconds, got {intent.load_deadline_s:g}",
        )
    other_columns = checked(columns(intent, _AS_GIVEN), faults)
    _check_parameters(intent, sizes["budget_bytes"] or MAX_BUDGET_BYTES, faults)
    faults.stop()
    return {"name": name, "type": intent.type, **sizes, "parameters": intent.parameters, **other_columns}


def _size(intent: TierPut, field: str) -> int:
    """Return the size, 0 if it is missing. Raises ValueError."""
    low, high = _SIZES[field]
    field_value = getattr(intent, field)
    if field_value is msgspec.UNSET:
        return 0
    value = checks.size(field_value) or 0
    if not low <= value <= high:
        low_text = f"{low} byte" if low == 1 else format_size(low)
        raise ValueError(f"expected {low_text} to {format_size(high)}, got {format_size(value)}")
    return value


def _check_parameters(intent: TierPut, budget_bytes: int, faults: checks.Faults) -> None:
    """Check the type and its parameters, secrets first: no message repeats a value that may be one."""
    secret_faults = list(literal_secrets.faults(intent.parameters, "parameters"))
    for path, message in secret_faults:
        faults.add(path, message)
    if secret_faults:
        return
    try:
        _check_plain(intent.parameters, "parameters", 1)
        size = len(msgspec.msgpack.encode(intent.parameters))
        if size > MAX_PARAMETERS_BYTES:
            raise registry.ParameterError("", f"expected at most {MAX_PARAMETERS_BYTES:,} bytes, got {size:,}")
    except registry.ParameterError as error:
        faults.add(error.field or "parameters", str(error).removeprefix(f"{error.field}: "))
        return
    if intent.type is not msgspec.UNSET:
        _check_type(intent.type, intent, budget_bytes, faults)


def _check_type(kind: str, intent: TierPut, budget_bytes: int, faults: checks.Faults) -> None:
    """Check the type, and what depends on it; its parameters only if its package can be imported here, because nodes
    check them, too."""
    tier_types = registry.tier_types()
    if kind not in tier_types:
        message = (
            f"expected one of {', '.join(tier_types)}, got {kind[:64]!r}; a type of another package must "
            "be installed beside the management plane, too"
        )
        faults.add("type", message)
        return
    try:
        registry.tier_type(kind)
    except registry.ParameterError:
        return  # its package lacks a dependency here
    for field, text in registry.tier_faults_of(
        TierSpec("", kind, budget_bytes, intent.parameters, compress=intent.compress)
    ):
        faults.add(field, text)


def _check_plain(value: Any, path: str, depth: int) -> None:
    """Check that databases and nodes can hold the value. Raises ParameterError."""
    if depth > MAX_DEPTH:
        raise registry.ParameterError(path, f"expected at most {MAX_DEPTH} levels")
    if isinstance(value, str):
        if not is_printable(value):
            raise registry.ParameterError(path, "expected printable characters")
    elif isinstance(value, Mapping):
        for name, item in value.items():
            _check_plain(name, path, depth)
            _check_plain(item, f"{path}.{name}", depth + 1)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _check_plain(item, f"{path}[{number}]", depth + 1)
    elif isinstance(value, int) and not _MIN_INTEGER <= value <= _MAX_INTEGER:
        raise registry.ParameterError(path, "expected a number of at most 64 bits")
