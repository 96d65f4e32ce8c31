"""Descriptions of the fields of a struct: the text below each field in the source, which the description of the API
and the help of commands and of metrics show."""

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import cache

import msgspec


@cache
def descriptions(kind: type[msgspec.Struct]) -> Mapping[str, str]:
    """Return the first paragraph of the text below each field by the name of the field, those of base classes
    included; nothing for a struct without source."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        found |= _own(_classes(each.__module__).get(each.__name__))
    return found


@cache
def _classes(module: str) -> Mapping[str, ast.ClassDef]:
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):  # a library without source
        return {}
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _own(definition: ast.ClassDef | None) -> Mapping[str, str]:
    found: dict[str, str] = {}
    field = ""
    for node in [] if definition is None else definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            field = node.target.id
        elif field and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found[field] = " ".join(str(node.value.value).partition("\n\n")[0].split())
            field = ""
    return found
