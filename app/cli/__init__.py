"""The `larder` command. Each command is a module that is imported when it is called: `--help` must be fast."""

import sys
from importlib import import_module
from typing import Any

import click

from app import __version__
from app.observe.visible import plain

_COMMANDS = {
    "up": ("app.cli.up:up", "Start Larder: API, dashboard and data plane."),
    "status": ("app.cli.status:status", "Show nodes, pool, tenants and pins."),
    "quotas": ("app.cli.quotas:quotas", "A tenant's share of the pool."),
    "tenants": ("app.cli.tenants:tenants", "Who keeps something, with or without a quota."),
    "pins": ("app.cli.pins:pins", "Prefixes that must stay."),
    "tokenizers": ("app.cli.tokenizers:tokenizers", "Tokenizers of models, for pins and look-ups by text."),
    "policies": ("app.cli.policies:policies", "How victims are chosen."),
    "prefixes": ("app.cli.prefixes:prefixes", "What was served most in the last hour."),
    "login": ("app.cli.login:login", "Keep a token for a Larder."),
    "logout": ("app.cli.login:logout", "Forget it."),
    "whoami": ("app.cli.login:whoami", "Who Larder takes you for."),
    "tokens": ("app.cli.tokens:tokens", "What callers prove themselves with."),
    "ceilings": ("app.cli.ceilings:ceilings", "How far tenants may go by themselves."),
    "events": ("app.cli.events:events", "What happened, newest first."),
    "pushes": ("app.cli.pushes:pushes", "What was sent to nodes, and how they answered."),
    "replicas": ("app.cli.replicas:replicas", "Management planes that share the database."),
    "audit": ("app.cli.audit:audit", "Who did what, and whether the journal is whole."),
    "blocks": ("app.cli.blocks:blocks", "What is cached, block by block."),
    "lookup": ("app.cli.actions:lookup", "How much of a prefix each node would serve."),
    "locate": ("app.cli.actions:locate", "Which nodes hold a prefix, best first."),
    "invalidate": ("app.cli.actions:invalidate", "Make blocks unreadable at once."),
    "demote": ("app.cli.actions:demote", "Make blocks the first victims."),
    "verify": ("app.cli.actions:verify", "Hold blocks against their checksums."),
    "clear": ("app.cli.actions:clear", "Drop everything that is cached."),
    "export": ("app.cli.export:export", "Print records as a document."),
    "diff": ("app.cli.diff:diff", "What applying documents would change."),
    "apply": ("app.cli.apply:apply", "Make records what documents say."),
    "nodes": ("app.cli.nodes:nodes", "Nodes: join tokens, labels, draining, size."),
    "manager-key": ("app.cli.manager_key:manager_key", "The key by which nodes know this management plane."),
    "dataplane": ("app.cli.passthrough:dataplane", "Run a data plane alone; it joins a fleet by a token."),
    "usage": ("app.cli.usage:usage", "What tenants held, asked for and were spared."),
    "rates": ("app.cli.usage:rates", "How fast a prefill is without the cache."),
    "doctor": ("app.cli.doctor:doctor", "Look at this machine: what is wrong, and how to mend it."),
    "db": ("app.cli.db:db", "The database: upgrade, check, backup."),
    "trace": ("app.cli.trace:trace", "Record what engines asked for."),
    "openapi": ("app.cli.openapi:openapi", "Print the API's description as JSON."),
    "replay": ("app.cli.passthrough:replay", "Replay a request trace against a data plane."),
    "demo": ("app.cli.passthrough:demo", "Start Larder with a real load to look at."),
}


_ALIASES = {
    "quota": "quotas",
    "pin": "pins",
    "policy": "policies",
    "node": "nodes",
    "prefix": "prefixes",
    "tokenizer": "tokenizers",
    "tenant": "tenants",
    "token": "tokens",
    "ceiling": "ceilings",
}
"""What people type as well; not listed."""


class LazyGroup(click.Group):
    """Knows its commands by name and help; imports the one that is called."""

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

    def invoke(self, ctx: click.Context) -> Any:
        """Errors repeat what others wrote."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            error.message = plain(error.message, lines=True)  # type: ignore[misc]  # a copy would lose its kind
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="larder")
def larder() -> None:
    """Larder: a control tower for LLM KV caches."""


def main() -> None:
    """Console entry: exit code 0, 1 for a failure told in one sentence, 2 for wrong usage."""
    try:
        larder.main(prog_name="larder", standalone_mode=True)
    except BrokenPipeError:  # the reader of our output (head, less) went away
        sys.stderr.close()
        sys.exit(1)
