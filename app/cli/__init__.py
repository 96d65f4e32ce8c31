"""The `larder` command. It imports the module of a command only when the command is called, so that `--help` is
fast."""

from importlib import import_module
from typing import Any

import click

from app import __version__
from app.cli.support import exit_codes
from dataplane.base.redaction import redacted
from dataplane.base.visible import plain

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Run": {
        "up": ("machine.up", "Start Larder: API, dashboard and data plane."),
        "down": ("machine.down", "Stop Larder and release its cache."),
        "restart": ("machine.restart", "Replace the processes and keep the cache."),
        "demo": ("machine.passthrough", "Start Larder with a synthetic load."),
        "dataplane": ("machine.passthrough", "Run only a data plane, which joins a fleet with a token."),
        "holder": ("machine.holder", "Hold the memory of a data plane, as a service of its own."),
        "install": ("machine.install", "Install Larder as services of this machine."),
    },
    "Look": {
        "status": ("views.status", "Show nodes, pool, tenants and pins."),
        "why": ("views.why", "Show what is wrong with a tenant or node, and the most likely cause."),
        "alerts": ("views.alerts", "List the alerts that Alertmanager or Grafana sent."),
        "top": ("views.top", "Show nodes, tenants, pins and rates, live."),
        "series": ("views.series", "Show figures over time, and what happened meanwhile."),
        "events": ("views.events", "List events, newest first."),
        "usage": ("usage.usage", "Report usage by tenant."),
        "doctor": ("machine.doctor", "Check this machine and suggest fixes."),
        "version": ("views.version", "Show the versions of client, server and nodes."),
    },
    "Records": {
        "quotas": ("records.nouns", "Manage quotas of tenants."),
        "tenants": ("records.tenants", "Manage tenants with cached blocks or a quota."),
        "pins": ("records.nouns", "Manage pinned prefixes."),
        "policies": ("records.nouns", "Manage eviction policies."),
        "tiers": ("records.nouns", "Manage tiers; check directories of disk tiers."),
        "ceilings": ("records.nouns", "Manage the ceilings of tenants."),
        "rates": ("records.nouns", "Manage prefill rates without the cache."),
        "tokenizers": ("records.nouns", "Manage tokenizers, for pins and look-ups by text."),
    },
    "Documents": {
        "export": ("documents.export", "Print records as a document."),
        "diff": ("documents.apply", "Show what applying documents would change."),
        "apply": ("documents.apply", "Apply documents."),
    },
    "Cached blocks": {
        "prefixes": ("records.prefixes", "List the most served prefixes of the last hour."),
        "blocks": ("cache.blocks", "List cached blocks."),
        "sessions": ("cache.sessions", "Release, retain and prefetch blocks of sessions."),
        "lookup": ("cache.actions", "Show how much of a prefix each node would serve."),
        "locate": ("cache.actions", "Show which nodes hold a prefix, best first."),
        "verify": ("cache.actions", "Verify blocks against their checksums."),
        "invalidate": ("cache.actions", "Make blocks unreadable at once."),
        "demote": ("cache.actions", "Make blocks the first victims."),
        "move": ("cache.actions", "Move blocks between memory and tiers."),
        "compress": ("cache.actions", "Encode the blocks of a tier again."),
        "clear": ("cache.actions", "Drop everything that is cached."),
    },
    "Fleet": {
        "nodes": ("fleet.nodes", "Manage nodes: join tokens, labels, draining, size."),
        "engines": ("fleet.engines", "Manage processes that attached to nodes."),
        "pushes": ("fleet.pushes", "List pushes to nodes and their answers."),
        "managers": ("fleet.managers", "List managers that share the database."),
        "manager-key": ("fleet.manager_key", "Manage the key that authenticates this management plane."),
    },
    "Access": {
        "login": ("access.login", "Log in to a Larder and store the token."),
        "logout": ("access.login", "Delete the stored token."),
        "whoami": ("access.login", "Show the current identity."),
        "context": ("access.context", "Manage contexts: servers by name."),
        "tokens": ("access.tokens", "Manage API tokens."),
        "audit": ("access.audit", "List, export and verify the audit log."),
    },
    "Tools": {
        "db": ("machine.db", "Manage the database: upgrade, check, back up, restore."),
        "ipc": ("machine.ipc", "Show the queues and stores in shared memory of this user."),
        "size": ("machine.size", "Show how many bytes a token of a model takes."),
        "trace": ("cache.trace", "Record what engines request."),
        "replay": ("machine.passthrough", "Replay a request trace against a data plane."),
        "openapi": ("machine.openapi", "Print the API's description as JSON."),
        "completion": ("machine.completion", "Print a completion script for a shell."),
    },
}
"""The commands as `--help` lists them, each with its module in `commands` and its help."""
_COMMANDS = {name: command for commands in SECTIONS.values() for name, command in commands.items()}
_ALIASES = {
    "quota": "quotas",
    "pin": "pins",
    "policy": "policies",
    "tier": "tiers",
    "node": "nodes",
    "prefix": "prefixes",
    "tokenizer": "tokenizers",
    "tenant": "tenants",
    "token": "tokens",
    "ceiling": "ceilings",
    "engine": "engines",
    "manager": "managers",
    "event": "events",
    "alert": "alerts",
    "block": "blocks",
    "session": "sessions",
    "push": "pushes",
    "rate": "rates",
    "contexts": "context",
}
"""Aliases of commands, which the help does not list."""


class LazyGroup(click.Group):
    """A group that knows the name and the help of each command, and imports a command when it is called."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; `larder help NOUN` is `larder NOUN --help`."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = _ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"app.cli.commands.{_COMMANDS[cmd_name][0]}")
        command = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise click.NoSuchCommand(args[0], possibilities=_COMMANDS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Print failures as a message, and escape control characters in it: it may quote untrusted
        text."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            error.message = redacted(plain(error.message, lines=True))  # type: ignore[misc]  # a copy would lose its class
            raise
        except _failures() as error:
            raise exit_codes.failure(error, redacted(plain(str(error), lines=True))) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, _COMMANDS))
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(width), about) for name, (_, about) in commands.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in exit_codes.MEANINGS.items()])


def _failures() -> tuple[type[Exception], ...]:
    """Return the exceptions whose message is for the user. They are imported only after a failure."""
    from app.errors import LarderError
    from dataplane.base.settings import SettingsError

    return LarderError, SettingsError


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="larder")
@click.option("--context", metavar="NAME", help="Use this context instead of the current one.")
@click.pass_context
def larder(ctx: click.Context, context: str | None) -> None:
    """Larder: a control tower for LLM KV caches."""
    if context is not None:
        ctx.meta["larder.context"] = context
