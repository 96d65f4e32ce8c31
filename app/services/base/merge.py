"""JSON merge patch, RFC 7396: the patch is merged into the current value; null removes a field."""

from collections.abc import Collection, Iterable
from typing import Any, TypeVar

import msgspec

from app.errors import Invalid
from app.services.base.fields import field_error

T = TypeVar("T", bound=msgspec.Struct)


def merge(target: Any, patch: Any) -> Any:
    """Return the patched value; neither argument is changed."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value)
    return result


def patched(kind: type[T], record: dict[str, Any], patch: dict[str, Any]) -> T:
    """Return the complete intent: the held record with the patch applied. Raises Invalid."""
    check_names(patch, kind.__struct_encode_fields__)
    return converted(kind, merge(record, patch))


def check_names(patch: Iterable[str], field_names: Collection[str]) -> None:
    """Check the names of a patch's fields; the decoder does not see those that are null. Raises Invalid."""
    for name in patch:
        if name not in field_names:
            raise Invalid.at(name, f"unknown; expected one of {', '.join(field_names)}")


def converted(kind: type[T], fields: dict[str, Any]) -> T:
    """Return the fields as a struct. Raises Invalid."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        fault = field_error(str(error), kind)
        raise Invalid.about([fault]) from None
