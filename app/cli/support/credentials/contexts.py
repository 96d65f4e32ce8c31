"""Contexts: Larder servers by name, each with its URL and token. They are in `~/.config/larder/contexts.json`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click

from app.cli.support.credentials import private_file
from app.cli.support.exit_codes import NothingFound

_NAMED = "larder.context"


@dataclass(frozen=True)
class Context:
    url: str
    token: str = ""


@dataclass(frozen=True)
class Contexts:
    """The content of the file."""

    current: str = ""
    contexts: Mapping[str, Context] = field(default_factory=dict)

    def get(self, name: str) -> Context:
        """Return a context. Raises NothingFound."""
        if name not in self.contexts:
            raise NothingFound(f"there is no context {name!r}; 'larder context list' shows the contexts")
        return self.contexts[name]


def _keep_name(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[_NAMED] = value


context_option = click.option(
    "--context",
    metavar="NAME",
    expose_value=False,
    callback=_keep_name,
    help="Use this context instead of the current one.",
)


def path() -> Path:
    return private_file.folder() / "contexts.json"


def load() -> Contexts:
    """Return the stored contexts. Raises ClickException."""
    expected = "an object with `current` and `contexts`"
    return private_file.read(path(), Contexts, expected, "'larder context add'") or Contexts()


def save(contexts: Contexts) -> None:
    """Store the contexts in a file that other users cannot read. Raises ClickException."""
    private_file.write(path(), asdict(contexts))


def chosen() -> str:
    """Return the name that `--context` gives; empty without the option."""
    context = click.get_current_context(silent=True)
    return "" if context is None else str(context.meta.get(_NAMED, ""))


def named() -> Context | None:
    """Return the context that `--context` names; None without the option. Raises NothingFound."""
    return load().get(chosen()) if chosen() else None


def current() -> Context | None:
    """Return the current context, if there is one."""
    stored = load()
    return stored.contexts.get(stored.current)
