"""Error messages about the fields of a body, a record or a file: msgspec's messages in Larder's wording."""

import re
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

MAX_SHOWN = 40
"""Number of characters of a wrong value that a message repeats."""
_PATH = re.compile(r"^(?P<message>.*?)(?: - at (?:`key` in )?`(?P<path>[^`]*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.?(?P<name>[^.\[\]]+)|\[[^\]]*\]")
_NAMED = re.compile(r"(?P<what>unknown|required) field `(?P<name>[^`]*)`")
_WRONG_VALUE = re.compile(r"^Invalid (?:enum )?value '?(?P<value>.*?)'?$", re.DOTALL)
_WRONG_TYPE = re.compile(r"^Expected `(?P<wanted>[^`]*)`(?:, got `(?P<got>[^`]*)`)?$")
_LENGTH = re.compile(
    r"^Expected `(?P<type>str|array|object)` of (?:length (?P<sign><=|>=)|at (?P<end>least|most) length) (?P<bound>\d+)"
)
_BOUND = re.compile(r"^Expected `(?P<type>int|float)` (?P<sign><=|>=|<|>) (?P<bound>[-+\w.]+)$")
_PATTERN = re.compile(r"^Expected `str` matching regex '(?P<pattern>.*)'$")
_MULTIPLE = re.compile(r"^Expected `(?P<type>int|float)` that's a multiple of (?P<of>[\w.]+)$")
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "null": "null",
    "array": "a list",
    "object": "a map",
}
_OF = {"str": ("character", "characters"), "array": ("item", "items"), "object": ("entry", "entries")}
_SIGNS = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than"}
_NAMES: dict[Any, str] = {bool: "bool", int: "int", float: "float", str: "str", type(None): "null"}


def split_path(message: str) -> tuple[str, str]:
    """Split msgspec's message into (path without the leading `$`, message without the path)."""
    match = _PATH.match(message)
    assert match is not None
    return (match["path"] or "$").removeprefix("$").removeprefix("."), match["message"]


def described(message: str, kind: Any = None) -> tuple[str, str]:
    """Return msgspec's message about a value of type `kind` (None: unknown) as the path of the field, which is empty
    for the value itself, and a sentence that says what was expected."""
    path, problem = split_path(message)
    named = _NAMED.search(problem)
    if named is not None:
        path_of_field = f"{path}.{named['name']}" if path else named["name"]
        if named["what"] == "unknown":
            field_names = ", ".join(_fields(_at(kind, path)))
            return path_of_field, f"unknown; expected one of {field_names}" if field_names else "unknown"
        return path_of_field, f"expected {_expected(_at(kind, path_of_field), path_of_field)}, got nothing"
    return path, sentence(problem, path, _at(kind, path))


def sentence(message: str, path: str = "", hint: Any = None) -> str:
    """Return the decoder's message about one value, declared as `hint`, in Larder's wording."""
    value_error = _WRONG_VALUE.match(message)
    type_error = _WRONG_TYPE.match(message)
    if value_error is not None and _choices(hint):
        return f"expected {_expected(hint, path)}, got {value_error['value'][:MAX_SHOWN]!r}"
    if type_error is not None:
        types = type_error["wanted"].split(" | ")
        expected = _expected(hint, path) if _choices(hint) else _one_of(types, path)
        return f"expected {expected}" + (f", got {_got(type_error['got'], types)}" if type_error["got"] else "")
    bound = _BOUND.match(message)
    if bound is not None:
        return f"expected {_WORDS[bound['type']]}, {_SIGNS[bound['sign']]} {bound['bound']}"
    length = _LENGTH.match(message)
    if length is not None:
        sign = _SIGNS[length["sign"]] if length["sign"] else f"at {length['end']}"
        return f"expected {sign} {int(length['bound']):,} {_OF[length['type']][length['bound'] != '1']}"
    pattern = _PATTERN.match(message)
    if pattern is not None:
        examples = [repr(example) for example in _examples(hint)]
        return f"expected text such as {' or '.join(examples) or pattern['pattern']}"
    multiple = _MULTIPLE.match(message)
    if multiple is not None:
        return f"expected {_WORDS[multiple['type']]}, a multiple of {multiple['of']}"
    if "out of range" in message:
        return "expected a smaller number"
    return message[:1].lower() + message[1:].replace("`", "'")


def _got(name: str, types: list[str]) -> str:
    if name == "float" and "int" in types:
        return "a number that is not whole"
    return _WORDS.get(name, name)


def _one_of(type_names: list[str], path: str = "") -> str:
    """Return `text or null`, for example; for a size, say how sizes are written."""
    words = [_WORDS.get(name, name) for name in type_names]
    if path.endswith("_bytes") and "int" in type_names:
        words = ["bytes as a whole number", *(["text such as '4GiB'"] if "str" in type_names else []),
                 *(["null"] if "null" in type_names else [])]  # fmt: skip
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _expected(hint: Any, path: str) -> str:
    """Describe the values that a field accepts, from its declaration."""
    choices = _choices(hint)
    if choices:
        return f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    type_names = [_name(part) for part in member_types(hint)]
    return _one_of(list(dict.fromkeys(type_names)), path) if type_names else "a value"


def _name(part: Any) -> str:
    if get_origin(part) in (list, tuple, set, frozenset):
        return "array"
    return _NAMES.get(part, "object")


def member_types(hint: Any) -> Iterator[Any]:
    """Yield the member types of a union, without annotations."""
    if get_origin(hint) is Annotated:
        yield from member_types(get_args(hint)[0])
    elif get_origin(hint) in (Union, UnionType):
        for part in get_args(hint):
            yield from member_types(part)
    elif hint is not None and hint not in (Any, msgspec.UnsetType):
        yield hint


def _examples(hint: Any) -> list[Any]:
    """Return the examples of a declaration with a pattern; empty if it has none."""
    metas = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return [example for meta in metas if isinstance(meta, msgspec.Meta) for example in meta.examples or ()]


def _at(kind: Any, path: str) -> Any:
    """Return the declared type of the value at a path of a body of type `kind`; None if unknown."""
    hint = kind
    for step in _STEP.finditer(path):
        member_hint = None
        for part in member_types(hint):
            if step["name"] is None and get_origin(part) in (list, dict):
                member_hint = get_args(part)[-1]
            elif step["name"] is not None and _is_struct(part):
                member_hint = get_type_hints(part, include_extras=True).get(step["name"], member_hint)
        hint = member_hint
    return hint


def _is_struct(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, msgspec.Struct)


def _fields(hint: Any) -> list[str]:
    return [
        field.encode_name for part in member_types(hint) if _is_struct(part) for field in msgspec.structs.fields(part)
    ]


def _choices(hint: Any) -> list[str]:
    """Return the literal values of a field; empty if it has none."""
    return [str(value) for part in member_types(hint) if get_origin(part) is Literal for value in get_args(part)]
