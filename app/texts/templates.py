"""Render chat templates in Hugging Face's dialect: Jinja in its sandbox, with a limit on the size of the output."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from app.texts.jobs import MAX_CHARACTERS

_FAILURES = (
    TemplateError,
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    RecursionError,
    MemoryError,
)


class UnusableTemplate(Exception):
    """A template that cannot be compiled, or fails on the given messages; the text says why."""


class _Generation(Extension):
    """Jinja extension for `{% generation %}`, which marks output of the model and does not change the text."""

    tags = {"generation"}  # noqa: RUF012 - declared so by Jinja

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def compiled(source: str) -> Template:
    """Compile a template. Raises UnusableTemplate."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    try:
        return environment.from_string(source)
    except (TemplateError, RecursionError, SyntaxError, ValueError) as error:
        raise UnusableTemplate(f"the template cannot be read: {_message(error)}") from None


def rendered(
    template: Template,
    messages: Sequence[Mapping[str, Any]],
    special_tokens: Mapping[str, str],
    *,
    add_generation_prompt: bool,
) -> str:
    """Render messages. Raises UnusableTemplate."""
    variables = {**special_tokens, "messages": messages, "add_generation_prompt": add_generation_prompt}
    pieces, length = [], 0
    try:
        for piece in template.generate(variables):
            length += len(piece)
            if length > MAX_CHARACTERS:
                raise UnusableTemplate(f"the template rendered the messages to more than {MAX_CHARACTERS} characters")
            pieces.append(piece)
    except _FAILURES as error:
        raise UnusableTemplate(f"the template failed on these messages: {_message(error)}") from None
    return "".join(pieces)


def _message(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:300]


def _refuse(message: Any) -> NoReturn:
    raise TemplateError(str(message))


def _now(time_format: str) -> str:
    return datetime.now().astimezone().strftime(time_format)


def _to_json(value: Any, indent: int | None = None, **_options: Any) -> str:
    """Replace Jinja's `tojson` filter, which would escape HTML characters."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
