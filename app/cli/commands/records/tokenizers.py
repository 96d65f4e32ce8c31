"""`larder tokenizers …`: manage the tokenizers that convert text of pins and look-ups."""

import json
from typing import IO, Any

import click

from app.cli.support.api.client import call, state_headers, url_option
from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column, say
from app.cli.support.resources.options import Noun, Output, output_option
from app.cli.support.resources.verbs import Resource, add_delete, add_describe, add_get, add_list

_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Special tokens of a tokenizer_config.json, by the names that templates use."""


def _has_template(item: dict[str, Any]) -> str:
    if not item["digest"]:  # not shown to callers that are limited to tenants
        return ""
    return "no" if item["chat_template"] is None else "yes"


_COLUMNS = (
    Column("name", lambda t: t["name"]),
    Column("model", lambda t: t["model"]),
    Column("digest", lambda t: t["digest"][:16], drop=2),
    Column("chat template", _has_template, drop=1),
    Column("changed", lambda t: show.ago(t["updated_at"])),
    Column("note", lambda t: t["note"], drop=3, text=True),
)
_TOKENIZERS = Resource("/api/v1/tokenizers", "tokenizer", _COLUMNS)


@click.group(cls=Noun)
def tokenizers() -> None:
    """Manage tokenizers of models, which allow pins and look-ups by text and messages."""


add_list(tokenizers, _TOKENIZERS, "List all tokenizers.")
add_get(tokenizers, _TOKENIZERS, "Show one tokenizer, without its file.")
add_delete(tokenizers, _TOKENIZERS, "Delete a tokenizer. Pins that were made with it stay.")
add_describe(tokenizers, _TOKENIZERS)


@tokenizers.command("set")
@click.argument("name")
@click.option("--model", required=True, help="Model name, as engines attach with it.")
@click.option("--file", type=click.File(encoding="utf-8"), required=True, help="The tokenizer.json.")
@click.option(
    "--chat-template",
    type=click.File(encoding="utf-8"),
    help="A Jinja template, or a tokenizer_config.json, which also has the special tokens.",
)
@click.option("--no-special-tokens", is_flag=True, help="Add no special tokens around a text.")
@click.option("--note", default="", help="Free-form note; at most 1,024 characters.")
@url_option
@output_option
def set_tokenizer(
    name: str,
    model: str,
    file: IO[str],
    chat_template: IO[str] | None,
    no_special_tokens: bool,
    note: str,
    url: str | None,
    output: Output,
) -> None:
    """Register or replace the tokenizer of a model."""
    try:
        body: dict[str, Any] = {
            "model": model,
            "tokenizer": file.read(),
            "add_special_tokens": not no_special_tokens,
            "note": note,
        }
        if chat_template is not None:
            body |= _template(chat_template.read(), chat_template.name)
    except UnicodeDecodeError as error:
        raise click.UsageError(f"expected text in UTF-8: {error}") from None
    current = _TOKENIZERS.current(url, name)
    answer = call(url, "PUT", _TOKENIZERS.of(name), body, None, state_headers(current))
    if output.data(answer, name):
        return
    template = "with a chat template" if answer["chat_template"] is not None else "without a chat template"
    say(f"{name}: tokenizer of {answer['model']}, SHA-256 {answer['digest'][:16]}…, {template}")


def _template(text: str, path: str) -> dict[str, Any]:
    """Return the fields of the request for a chat template. Raises UsageError."""
    if not path.endswith(".json"):
        return {"chat_template": text}
    try:
        config = json.loads(text)
        template = config.get("chat_template")
    except (ValueError, AttributeError, RecursionError):
        raise click.UsageError(f"--chat-template: {path} is no tokenizer_config.json") from None
    if isinstance(template, list):  # several, by name
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default")
    if not isinstance(template, str):
        raise click.UsageError(f"--chat-template: {path} has no chat_template")
    tokens = {name: _content(config.get(name)) for name in _TOKENS}
    return {
        "chat_template": template,
        "special_tokens": {name: token for name, token in tokens.items() if token is not None},
    }


def _content(token: Any) -> str | None:
    """Return the text of a special token, which is a string or an object with the text."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
