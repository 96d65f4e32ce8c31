"""Reference pages from what the code declares: commands, routes, metrics, events, messages."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, get_args, get_type_hints

import click
import msgspec

from app.cli import larder
from app.observe import gateway_metrics, gpu_copy_metrics, lmcache_metrics, metrics
from app.observe.page import MetricDeclaration
from app.services.views.events import NOT_STORED
from dataplane.protocol import control, engine, events, join

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
WIDTH = 100
METHODS = ("get", "put", "patch", "post", "delete")
MANAGER_EVENTS = {
    "apply_file.applied": "The file of `apply_file` was applied.",
    "apply_file.refused": "The file of `apply_file` is invalid; the records of the last valid one stay.",
    "blocks.invalidate, blocks.demote, blocks.verify, blocks.clear": "An operator ran this action.",
    "cache.cold": "A data plane started without the blocks of the previous one. `released` is true if the memory was "
    "released on purpose.",
    "database.away, database.back": "The database stopped answering or taking changes, and answers again.",
    "dataplane.started, dataplane.exited": "The embedded data plane started or ended. A negative `code` is the signal; "
    "null means that the process was adopted.",
    "manager.leading, manager.following": "This manager became the leader, or stopped being it.",
    "node.clock_off, node.clock_right": "The clock of a node is more than 5 s off (`ahead_s`), or right again.",
    "node.drifted": "A node reports another snapshot than the one that it acknowledged; it is pushed again.",
    "node.draining, node.taking": "A node drains, or takes engines and stores again.",
    "node.joined, node.lost": "A node connected, or was silent for `app.node_lost_s`.",
    "node.resize, node.not_resized": "An operator asked for another pool size; a node refused it.",
    "pin.emptied": "A node that cached blocks of a guaranteed or permanent pin no longer caches any.",
    "push.acked, push.nacked, push.timed_out, push.refused": "The answer of a node to a snapshot.",
    "quota.changed, pin.changed, policy.changed": "A record was created, changed or deleted (`action`, `generation`).",
}
"""Events that the management plane publishes itself."""
CHANNELS: tuple[tuple[str, str, Any], ...] = (
    ("Engine requests", "AF_UNIX `SEQPACKET`, one message a datagram.", engine.EngineRequest),
    ("Engine replies", "The same socket; memory travels as file descriptors.", engine.EngineReply),
    ("Control requests", "ZeroMQ, from a manager to a node.", control.ControlRequest),
    ("Control replies", "ZeroMQ, from a node to a manager.", control.ControlReply),
    ("Enrolment replies", "ZeroMQ, from the join socket to a node.", join.JoinReply),
)


def cell(text: str | None) -> str:
    """Return text for a cell of a Markdown table: one line, `|` escaped."""
    return " ".join((text or "").split()).replace("|", "\\|")


def commands(note: str) -> str:
    """`reference/cli.md`: the help of each command."""
    lines = [
        "# Command line",
        "",
        note,
        "",
        "`larder COMMAND --help` prints the same text. [Command line](../operate/command-line.md) explains verbs, "
        "output, contexts and exit codes. `dataplane`, `replay` and `demo` pass all options on; see their `--help`.",
    ]
    for path, command, context in _walk(
        larder, click.Context(larder, info_name="larder", help_option_names=["-h", "--help"])
    ):
        command._help_option = None  # click keeps the option of the context that asked first
        text = command.get_help(context)
        lines += [
            "",
            f"{'#' * min(len(path) + 1, 4)} `{' '.join(path)}`",
            "",
            "```text",
            text.rstrip(),
            "```",
        ]
    return "\n".join(lines) + "\n"


def _walk(
    command: click.Command, context: click.Context
) -> Iterator[tuple[list[str], click.Command, click.Context]]:
    context.terminal_width = context.max_content_width = WIDTH
    yield context.command_path.split(), command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from _walk(found, click.Context(found, info_name=name, parent=context))


def routes(note: str) -> str:
    """`reference/routes.md`: every route of the API."""
    document = json.loads((GOLDEN / "openapi.json").read_text(encoding="utf-8"))
    by_tag: dict[str, list[str]] = defaultdict(list)
    for path, item in sorted(document["paths"].items()):
        for method in METHODS:
            route = item.get(method)
            if route is not None:
                tag = (route.get("tags") or ["service"])[0]
                about = cell(f"{route.get('summary', '')}. {route.get('description', '')}".replace("..", "."))
                by_tag[tag].append(f"| `{method.upper()}` | `{path}` | {about} |")
    lines = [
        "# Routes",
        "",
        note,
        "",
        "The full description (OpenAPI 3.1) is served at `/api/openapi.json`; `/api/docs` shows it and sends requests. "
        "[API](api.md) explains preconditions, pages and waiting.",
    ]
    for tag in sorted(by_tag):
        lines += ["", f"## {tag}", "", "| method | path | what |", "|---|---|---|", *by_tag[tag]]
    return "\n".join(lines) + "\n"


def metric_page(note: str) -> str:
    """`reference/metrics.md`: every metric."""
    lines = [
        "# Metrics",
        "",
        note,
        "",
        "`GET /metrics` serves them in Prometheus' format. Counters end in `_total`. The number of label values is "
        f"bounded: the {metrics.TENANT_LABELS} largest tenants, {metrics.SPACE_LABELS} spaces, {metrics.ENGINE_LABELS} "
        f"engines and {metrics.PIN_LABELS} pins by name, and `{metrics.OTHER}` for the rest.",
    ]
    for title, module in (
        ("Nodes, tenants and managers", metrics),
        ("GPU copies", gpu_copy_metrics),
        ("LMCache gateway", gateway_metrics),
        ("Under LMCache's names", lmcache_metrics),
    ):
        lines += ["", f"## {title}", "", "| metric | type | labels | what |", "|---|---|---|---|"]
        for declared in _declared(module):
            kind = declared.kind.__name__.removesuffix("MetricFamily").lower()
            name = declared.name + ("_total" if kind == "counter" else "")
            labels = ", ".join(f"`{label}`" for label in declared.labels)
            lines.append(f"| `{name}` | {kind} | {labels} | {cell(declared.help)} |")
    return "\n".join(lines) + "\n"


def _declared(module: ModuleType) -> list[MetricDeclaration]:
    found: dict[str, MetricDeclaration] = {}
    for value in vars(module).values():
        inner: Iterable[Any] = value.values() if isinstance(value, dict) else (value,)
        for each in inner:
            if isinstance(each, MetricDeclaration):
                found[each.name] = each
    return sorted(found.values(), key=lambda each: each.name)


def event_page(note: str) -> str:
    """`reference/events.md`: every event."""
    passing = ", ".join(f"`{name}`" for name in sorted(NOT_STORED))
    lines = [
        "# Events",
        "",
        note,
        "",
        "The stream `GET /api/v1/events` sends them. `larder events` and `GET /api/v1/events/history` list stored "
        f"events: all but {passing}. `blocks.stored`, `blocks.evicted`, `blocks.refused` and `reservation.aborted` "
        "are summed up by tenant four times a second: `blocks`, `bytes`, and `events` for how many they were.",
        "",
        "## Of the management plane",
        "",
        "| event | what |",
        "|---|---|",
    ]
    for name, text in sorted(MANAGER_EVENTS.items()):
        names = ", ".join(f"`{each}`" for each in name.split(", "))
        lines.append(f"| {names} | {text} |")
    lines += ["", "## Of data planes", "", "| event | fields | what |", "|---|---|---|"]
    for kind in sorted(get_args(events.Event), key=_tag):
        fields = ", ".join(f"`{field.name}`" for field in msgspec.structs.fields(kind))
        if kind is events.NodeStats:
            fields = "the state of the node, see `GET /api/v1/nodes/{name}`"
        lines.append(f"| `{_tag(kind)}` | {fields} | {cell(_documented(kind))} |")
    return "\n".join(lines) + "\n"


def wire(note: str) -> str:
    """`reference/wire.md`: every message between processes."""
    lines = [
        "# Wire protocol",
        "",
        note,
        "",
        f"Messages are MessagePack with a tag. Versions: engine protocol {engine.VERSION}, control protocol "
        f"{control.VERSION}, enrolment {join.VERSION}. Nothing is ever unpickled. Events are in [Events](events.md); "
        "the layout of shared memory is in `dataplane/protocol/layout.py`, and the LMCache wire in "
        "[LMCache gateway](lmcache-gateway.md).",
    ]
    for title, about, union in CHANNELS:
        lines += ["", f"## {title}", "", about, "", "| message | fields | what |", "|---|---|---|"]
        for kind in get_args(union) if isinstance(union, UnionType) else (union,):
            hints = get_type_hints(kind)
            fields = ", ".join(f"`{name}: {_type(hints[name])}`" for name in kind.__struct_fields__)
            lines.append(f"| `{_tag(kind)}` | {cell(fields)} | {cell(_documented(kind))} |")
    return "\n".join(lines) + "\n"


def _tag(kind: type[msgspec.Struct]) -> str:
    return str(kind.__struct_config__.tag)


def _documented(kind: type[msgspec.Struct]) -> str:
    text = kind.__dict__.get("__doc__") or ""
    return "" if text.startswith(f"{kind.__name__}(") else text


def _type(hint: Any) -> str:
    text = str(hint) if get_args(hint) else getattr(hint, "__name__", str(hint))
    for prefix in (
        "typing.",
        *(
            f"dataplane.protocol.{name}."
            for name in ("engine", "control", "join", "events", "spaces", "usage")
        ),
    ):
        text = text.replace(prefix, "")
    return text
