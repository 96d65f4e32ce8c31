"""`edit`: open a record as YAML in $EDITOR."""

import sys
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any

import click
import yaml

from dataplane.base.visible import plain

_HELP = "Lines that begin with # are ignored. An empty file changes nothing."


def edited(title: str, record: Mapping[str, Any], apply: Callable[[Mapping[str, Any]], None]) -> bool:
    """Open a record in the editor and apply what is saved. After an error on a terminal, open the editor again with the
    error on top, so that no work is lost; saving the same text again gives up. Return whether anything changed. Raises
    ClickException."""
    body = yaml.safe_dump(dict(record), sort_keys=False, allow_unicode=True)
    error = ""
    while True:
        comments = "".join(f"# {line}\n" for line in [title, _HELP, *(f"Error: {error}".splitlines() if error else [])])
        text = click.edit(comments + body, extension=".yaml")
        content = _without_comments(text or "")
        if text is None or not content.strip() or content == body:
            if error:
                raise click.ClickException(f"nothing was changed: {error}")
            return False
        body = content
        try:
            after = _with_times_as_text(yaml.safe_load(content))
            if not isinstance(after, dict):
                raise click.ClickException("expected fields and their values, such as `note: text`")
            if after == dict(record):
                return False
            apply(after)
        except (yaml.YAMLError, RecursionError) as fault:
            error = plain(f"the text is not YAML: {' '.join(str(fault).split())}")
        except click.ClickException as refused:
            # Another error cannot be fixed by editing the text.
            if getattr(refused, "status", 422) not in (400, 422):
                raise
            error = plain(refused.message)
        else:
            return True
        if not sys.stdin.isatty():
            raise click.ClickException(f"nothing was changed: {error}")


def _with_times_as_text(value: Any) -> Any:
    """Return a parsed YAML value with its times as RFC 3339 text: YAML parses an unquoted time into a datetime."""
    if isinstance(value, dict):
        return {name: _with_times_as_text(item) for name, item in value.items()}
    return value.isoformat() if isinstance(value, date) else value


def _without_comments(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
