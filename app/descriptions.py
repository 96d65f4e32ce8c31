"""Descriptions of the fields of a struct: the text below each field in the source, which the description of the API
and the help of commands and of metrics show."""

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec


@cache
def descriptions(kind: type[msgspec.Struct]) -> Mapping[str, str]:
    """Return the first paragraph of the text below each field by the name of the field, those of base classes
    included; nothing for a struct without source."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        found |= _of_module(each.__module__).get(each.__name__, {})
    return found


@cache
def _of_module(module: str) -> Mapping[str, Mapping[str, str]]:
    """Return the texts below the fields of the classes of a module by the name of the class."""
    try:
        path = inspect.getsourcefile(sys.modules[module])
        tree = ast.parse("" if path is None else Path(path).read_bytes())
    except (OSError, TypeError):  # a library without source
        return {}
    return {node.name: _of_class(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _of_class(definition: ast.ClassDef) -> Mapping[str, str]:
    found: dict[str, str] = {}
    field = ""
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            field = node.target.id
        elif field and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found[field] = " ".join(str(node.value.value).partition("\n\n")[0].split())
            field = ""
    return found
