"""Decorators that add options, those that select keys, and parsers for numbers and times."""

import json
import math
import re
from collections.abc import Callable
from typing import IO, Any, TypeVar, cast

import click

_TIME = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d|w)?", re.ASCII)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_KEY = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
MAX_TIME_S = 10_000 * 366 * 86_400
F = TypeVar("F", bound=Callable[..., Any])


def together(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return a decorator that adds options, in the order in which the help lists them."""

    def add(command: F) -> F:
        added: Any = command
        for option in reversed(options):
            added = option(added)
        return cast(F, added)

    return add


class FiniteFloat(click.types.FloatParamType):
    """A finite number, because JSON has neither infinity nor `nan`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"expected a finite number, got {value!r}", param, ctx)
        return number


FINITE = FiniteFloat()


key_options = together(
    click.option("--tokens", help="Token ids, separated by commas or spaces."),
    click.option(
        "--tokens-file",
        type=click.File(encoding="utf-8"),
        help="File of token ids: a JSON list, or numbers; - for stdin.",
    ),
    click.option(
        "--keys-file", type=click.File(encoding="utf-8"), help="File of keys, 64 hex digits each; - for stdin."
    ),
    click.option("--chunk-tokens", type=int, help="Tokens in a chunk, as the engines use it; default 256."),
)
"""Adds `--tokens`, `--tokens-file`, `--keys-file` and `--chunk-tokens`."""


def key_fields(
    tokens: str | None, tokens_file: IO[str] | None, keys_file: IO[str] | None, chunk_tokens: int | None
) -> dict[str, Any]:
    """Return the fields of the request; at most one source is given. Raises UsageError."""
    body: dict[str, Any] = {}
    if keys_file is not None:
        body["keys"] = _keys("--keys-file", _read("--keys-file", keys_file))
    elif tokens_file is not None:
        body["tokens"] = _numbers("--tokens-file", _read("--tokens-file", tokens_file))
    elif tokens is not None:
        body["tokens"] = _numbers("--tokens", tokens)
    if chunk_tokens is not None:
        body["chunk_tokens"] = chunk_tokens
    return body


text_options = together(
    click.option("--text", help="Text, which the tokenizer of the model converts to tokens."),
    click.option("--text-file", type=click.File(encoding="utf-8"), help="File of text; - for stdin."),
    click.option(
        "--messages",
        type=click.File(encoding="utf-8"),
        help="File of messages, a JSON list of {role, content}; - for stdin.",
    ),
    click.option("--generation-prompt", is_flag=True, help="Append the start of the model's turn to the messages."),
)
"""Adds `--text`, `--text-file`, `--messages` and `--generation-prompt`."""


def text_fields(
    text: str | None, text_file: IO[str] | None, messages: IO[str] | None, generation_prompt: bool
) -> dict[str, Any]:
    """Return the fields of the request; at most one source is given. Raises UsageError."""
    body: dict[str, Any] = {}
    if text_file is not None:
        body["text"] = _read("--text-file", text_file)
    elif text is not None:
        body["text"] = text
    elif messages is not None:
        body["messages"] = _json("--messages", _read("--messages", messages))
    if generation_prompt:
        body["add_generation_prompt"] = True
    return body


def _read(option: str, file: IO[str]) -> str:
    """Return the text of a file. Raises UsageError."""
    try:
        return file.read()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{option}: expected text in UTF-8, got other bytes at {error.start}") from None
    except OSError as error:
        raise click.UsageError(f"{option}: cannot be read: {error.strerror}") from None


def _json(option: str, text: str) -> list[Any]:
    """Return a JSON list. Messages never quote the file: it may be the wrong file and contain a secret. Raises
    UsageError."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise click.UsageError(
            f"{option}: expected a JSON list, got invalid JSON at line {error.lineno}, column {error.colno}"
        ) from None
    except ValueError:  # the only other cause: a number with thousands of digits
        raise click.UsageError(f"{option}: expected a JSON list, got a number that is too long") from None
    except RecursionError:
        raise click.UsageError(f"{option}: expected a JSON list, got one that is nested too deeply") from None
    if not isinstance(content, list):
        raise click.UsageError(f"{option}: expected a JSON list, got something else")
    return content


def _numbers(option: str, text: str) -> list[Any]:
    text = text.strip()
    if text.startswith("["):
        return _json(option, text)
    words = text.replace(",", " ").split()
    for at, word in enumerate(words):
        if _NUMBER.fullmatch(word) is None:
            raise click.UsageError(
                f"{option}: expected token ids as whole numbers or as a JSON list; word {at + 1} is no token id"
            )
    return [int(word) for word in words]


def _keys(option: str, text: str) -> list[str]:
    words = text.replace(",", " ").split()
    for at, word in enumerate(words):
        if _KEY.fullmatch(word) is None:
            raise click.UsageError(f"{option}: expected keys of 64 hex digits; word {at + 1} is no key")
    return words


def seconds(option: str, text: str) -> float:
    """Return the seconds of `90s`, `30m`, `12h`, `7d` or `2w`; a number without a unit is seconds. Raises UsageError
    that names the option."""
    match = _TIME.fullmatch(text)
    if match is None:
        expected = "a time such as 90s, 30m, 12h, 7d or 2w (a number alone is seconds)"
        raise click.UsageError(f"{option}: expected {expected}, got {text[:40]!r}")
    span = float(match[1]) * _UNITS[match[2] or ""]
    if span > MAX_TIME_S:
        raise click.UsageError(f"{option}: expected at most 10000 years, got {text[:40]!r}")
    return span
