"""The `larder` command. It imports the module of a command only when the command is called, so that `--help` is
fast."""

import sys
from importlib import import_module
from typing import Any

import click

from app import __version__
from app.cli.support import exit_codes
from dataplane.base.visible import plain

_COMMANDS = {
    "up": ("app.cli.commands.machine.up:up", "Start Larder: API, dashboard and data plane."),
    "down": ("app.cli.commands.machine.down:down", "Stop Larder and release its cache."),
    "restart": ("app.cli.commands.machine.restart:restart", "Replace the processes and keep the cache."),
    "status": ("app.cli.commands.views.status:status", "Show nodes, pool, tenants and pins."),
    "why": ("app.cli.commands.views.why:why", "Show what is wrong with a tenant or node, and the most likely cause."),
    "alerts": ("app.cli.commands.views.alerts:alerts", "List the alerts that Alertmanager or Grafana sent."),
    "top": ("app.cli.commands.views.top:top", "Show nodes, tenants, pins and rates, live."),
    "series": ("app.cli.commands.views.series:series", "Show figures over time, and what happened meanwhile."),
    "quotas": ("app.cli.commands.records.quotas:quotas", "Manage quotas of tenants."),
    "tenants": ("app.cli.commands.records.tenants:tenants", "Manage tenants with cached blocks or a quota."),
    "pins": ("app.cli.commands.records.pins:pins", "Manage pinned prefixes."),
    "tokenizers": (
        "app.cli.commands.records.tokenizers:tokenizers",
        "Manage tokenizers, for pins and look-ups by text.",
    ),
    "policies": ("app.cli.commands.records.policies:policies", "Manage eviction policies."),
    "prefixes": ("app.cli.commands.records.prefixes:prefixes", "List the most served prefixes of the last hour."),
    "login": ("app.cli.commands.access.login:login", "Log in to a Larder and store the token."),
    "logout": ("app.cli.commands.access.login:logout", "Delete the stored token."),
    "whoami": ("app.cli.commands.access.login:whoami", "Show the current identity."),
    "context": ("app.cli.commands.access.context:context", "Manage contexts: servers by name."),
    "tokens": ("app.cli.commands.access.tokens:tokens", "Manage API tokens."),
    "ceilings": ("app.cli.commands.records.ceilings:ceilings", "Manage the ceilings of tenants."),
    "events": ("app.cli.commands.views.events:events", "List events, newest first."),
    "pushes": ("app.cli.commands.fleet.pushes:pushes", "List pushes to nodes and their answers."),
    "managers": ("app.cli.commands.fleet.managers:managers", "List managers that share the database."),
    "audit": ("app.cli.commands.access.audit:audit", "List, export and verify the audit log."),
    "blocks": ("app.cli.commands.cache.blocks:blocks", "List cached blocks."),
    "lookup": ("app.cli.commands.cache.actions:lookup", "Show how much of a prefix each node would serve."),
    "locate": ("app.cli.commands.cache.actions:locate", "Show which nodes hold a prefix, best first."),
    "invalidate": ("app.cli.commands.cache.actions:invalidate", "Make blocks unreadable at once."),
    "demote": ("app.cli.commands.cache.actions:demote", "Make blocks the first victims."),
    "verify": ("app.cli.commands.cache.actions:verify", "Verify blocks against their checksums."),
    "move": ("app.cli.commands.cache.actions:move", "Move blocks between memory and tiers."),
    "compress": ("app.cli.commands.cache.actions:compress", "Encode the blocks of a tier again."),
    "clear": ("app.cli.commands.cache.actions:clear", "Drop everything that is cached."),
    "export": ("app.cli.commands.documents.export:export", "Print records as a document."),
    "diff": ("app.cli.commands.documents.diff:diff", "Show what applying documents would change."),
    "apply": ("app.cli.commands.documents.apply:apply", "Apply documents."),
    "nodes": ("app.cli.commands.fleet.nodes:nodes", "Manage nodes: join tokens, labels, draining, size."),
    "engines": ("app.cli.commands.fleet.engines:engines", "Manage processes that attached to nodes."),
    "manager-key": (
        "app.cli.commands.fleet.manager_key:manager_key",
        "Manage the key that authenticates this management plane.",
    ),
    "dataplane": (
        "app.cli.commands.machine.passthrough:dataplane",
        "Run only a data plane, which joins a fleet with a token.",
    ),
    "holder": ("app.cli.commands.machine.holder:holder", "Hold the memory of a data plane, as a service of its own."),
    "usage": ("app.cli.commands.usage.usage:usage", "Report usage by tenant."),
    "rates": ("app.cli.commands.usage.usage:rates", "Manage prefill rates without the cache."),
    "doctor": ("app.cli.commands.machine.doctor:doctor", "Check this machine and suggest fixes."),
    "db": ("app.cli.commands.machine.db:db", "Manage the database: upgrade, check, back up, restore."),
    "tiers": ("app.cli.commands.records.tiers:tiers", "Manage tiers; check directories of disk tiers."),
    "ipc": ("app.cli.commands.machine.ipc:ipc", "Show the queues and stores in shared memory of this user."),
    "size": ("app.cli.commands.machine.size:size", "Show how many bytes a token of a model takes."),
    "trace": ("app.cli.commands.cache.trace:trace", "Record what engines request."),
    "install": ("app.cli.commands.machine.install:install", "Install Larder as services of this machine."),
    "version": ("app.cli.commands.views.version:version", "Show the versions of client, server and nodes."),
    "completion": ("app.cli.commands.machine.completion:completion", "Print a completion script for a shell."),
    "openapi": ("app.cli.commands.machine.openapi:openapi", "Print the API's description as JSON."),
    "replay": ("app.cli.commands.machine.passthrough:replay", "Replay a request trace against a data plane."),
    "demo": ("app.cli.commands.machine.passthrough:demo", "Start Larder with a synthetic load."),
}


SECTIONS = {
    "Run": ("up", "down", "restart", "demo", "dataplane", "holder", "install"),
    "Look": ("status", "why", "alerts", "top", "series", "events", "usage", "doctor", "version"),
    "Records": ("quotas", "tenants", "pins", "policies", "tiers", "ceilings", "rates", "tokenizers"),
    "Documents": ("export", "diff", "apply"),
    "Cached blocks": (
        *("prefixes", "blocks", "lookup", "locate", "verify"),
        *("invalidate", "demote", "move", "compress", "clear"),
    ),
    "Fleet": ("nodes", "engines", "pushes", "managers", "manager-key"),
    "Access": ("login", "logout", "whoami", "context", "tokens", "audit"),
    "Tools": ("db", "ipc", "size", "trace", "replay", "openapi", "completion"),
}
"""Names of the commands as `--help` lists them."""
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
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
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
            error.message = plain(error.message, lines=True)  # type: ignore[misc]  # a copy would lose its class
            raise
        except _failures() as error:
            raise click.ClickException(plain(str(error), lines=True)) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, _COMMANDS))
        for section, names in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(width), _COMMANDS[name][1]) for name in names])

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


def main() -> None:
    """Run the `larder` command, and exit with a code of `exit_codes`."""
    try:
        larder.main(prog_name="larder", standalone_mode=True)
    except BrokenPipeError:  # the reader of the output (head, less) exited
        sys.stderr.close()
        sys.exit(1)
