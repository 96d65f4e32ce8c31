"""Reference pages from what the code declares: commands, routes, metrics, events, messages."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, get_args, get_type_hints

import click
import msgspec

from app.cli import larder
from app.cli.support import exit_codes
from app.descriptions import descriptions
from app.observe import (
    bounded,
    gateway_metrics,
    gpu_copy_metrics,
    ipc_metrics,
    kv_event_metrics,
    lmcache_metrics,
    manager_metrics,
    node_activity_metrics,
    node_metrics,
    pin_metrics,
    process_metrics,
    tenant_metrics,
    tier_metrics,
)
from app.observe.catalogue import OF_DATA_PLANES, OF_MANAGEMENT_PLANE, name_of
from app.observe.page import OTHER, MetricDeclaration
from app.observe.series import SERIES
from app.schemas.views.findings import FINDING_TYPES
from dataplane.holding import messages as holder_messages
from dataplane.protocol import engine, join
from dataplane.protocol.control import messages
from dataplane.protocol.event import COMMON_FIELDS, EventStruct
from dataplane.protocol.stats.node import NodeStats

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
BUNDLES = {
    "prefix": (
        *("--tokens", "--tokens-file", "--keys-file", "--chunk-tokens", "--text", "--text-file", "--messages"),
        "--generation-prompt",
    ),
    "page": ("--sort", "--cursor", "--limit"),
    "scope": ("--tenant", "--model", "--space", "--node"),
    "list": ("-o", "--json", "-w"),
    "output": ("-o", "--json"),
    "API": ("--url", "--context", "--timeout"),
}
"""Options that occur together, by the name that stands for them."""
VERBS: dict[str, frozenset[str]] = {
    "create": frozenset(),
    "delete": frozenset(),
    "describe": frozenset({"Includes its conditions, and events that concern it."}),
    "edit": frozenset({"Refused if the record changed meanwhile."}),
    "get": frozenset(),
    "list": frozenset(),
    "set": frozenset({"Omitted options keep the values of the record; a new record gets the defaults."}),
}
"""Verbs that mean the same for every noun, and what their help says about it after the first sentence."""
SHARED_BY = 2
"""An option of so many nouns and single commands is described once."""
LIMIT_OF_PAGES = ("--limit INTEGER", "Maximum number of items; default all.  [x>=1]")
NODE_OF_LISTS = ("--node NAME", "Only this node.")
NOT_OF_RECORDS = frozenset({"--context", "--json", "--output", "--timeout", "--url", "--wait", "-o"})
"""Options of `create` that are not about the record."""
_MODULE = re.compile(r"\b(?:typing|dataplane\.protocol(?:\.\w+)*)\.(?=\w)")
METHODS = ("get", "put", "patch", "post", "delete")
CHANNELS: tuple[tuple[str, str, Any], ...] = (
    ("Engine requests", "AF_UNIX `SEQPACKET`, one message per datagram.", engine.EngineRequest),
    ("Engine replies", "The same socket; memory travels as file descriptors.", engine.EngineReply),
    ("Control requests", "ZeroMQ, from a manager to a node.", messages.ControlRequest),
    ("Control replies", "ZeroMQ, from a node to a manager.", messages.ControlReply),
    ("Enrolment replies", "ZeroMQ, from the join socket to a node.", join.JoinReply),
)


Record = tuple[str, str]
"""The declaration of an option, and its help."""


def cell(text: str | None) -> str:
    """Return text for a cell of a Markdown table: one line, `|` escaped."""
    return " ".join((text or "").split()).replace("|", "\\|")


def commands(note: str) -> str:
    """`reference/cli.md`: the help of each command. Options of many commands, and those of several commands of a noun,
    are described once."""
    root = click.Context(larder, info_name="larder", help_option_names=["-h", "--help"])
    found = [(path, command, _records(command, context)) for path, command, context in _walk(larder, root)]
    nouns = {path[1] for path, _, _ in found if len(path) > 2}
    by_subject: dict[str, set[Record]] = defaultdict(set)
    for path, _, records in found:
        by_subject[path[-1] if len(path) == 1 else path[1]].update(records)
    everywhere = _often(SHARED_BY, by_subject.values()) | {LIMIT_OF_PAGES, NODE_OF_LISTS}
    of_noun = {
        noun: _often(2, (records for path, _, records in found if path[1:2] == [noun])) - everywhere for noun in nouns
    }
    lines = [
        "# Command line",
        "",
        note,
        "",
        "`larder COMMAND --help` says the same. [Command line](../operate/command-line.md) explains verbs, output "
        "and contexts. `--help` of `dataplane`, `replay` and `demo` shows more.",
        "",
        "## Shared options",
        "",
        "Options of several commands are described here or at their noun, and named in brackets. "
        + "; ".join(f"*{name}*: {_listed(BUNDLES[name])}" for name in BUNDLES if name != "API")
        + ". The `--limit` of *page* is all items by default, and lists take one `--node`. "
        f"*record*: options at the noun. All commands but the *local* ones take {_listed(BUNDLES['API'])}.",
        "",
        *sorted(map(_option, everywhere - {LIMIT_OF_PAGES, NODE_OF_LISTS})),
        "",
        "## Exit codes",
        "",
        "| code | meaning |",
        "|---|---|",
        *(f"| {code} | {cell(meaning)} |" for code, meaning in exit_codes.MEANINGS.items()),
    ]
    of_record = {
        path[1]: {_name(each) for each in records if _name(each) not in NOT_OF_RECORDS}
        for path, _, records in found
        if path[2:] == ["create"] and path[1] != "tokens"
    }
    plain: dict[str, list[str]] = defaultdict(list)
    entries = []
    for path, command, records in found:
        shared = of_noun.get(path[1], set()) if len(path) > 1 else set()
        own, names = _split(command, records, everywhere | shared)
        if not isinstance(command, click.Group) and not set(BUNDLES["API"]) <= set(map(_name, records)):
            names = ["*local*", *names]
        record = set(_bundled(sorted(of_record.get(path[1], ())))) if len(path) == 3 else set()
        if record and record <= set(names):
            names = ["*record*", *(name for name in names if name not in record)]
        usage = _usage(path, command, root)
        about = [" ".join(each.split()) for each in (command.help or "").split("\n\n") if each != "\b"]
        if _is_plain(path, own, about):
            verb = re.sub(r"(?<!list) \[?(NAME|TENANT)\]?", "", usage.partition(" ")[2])
            plain[path[1]].append(f"`{verb}`" + (f" ({', '.join(names)})" if names else ""))
            continue
        if names:
            about[-1] += f" ({', '.join(names)})"
        described = [*sorted(map(_option, shared if len(path) == 2 else ())), *map(_option, own)]
        entries.append((path, usage, about, described))
    for path, usage, about, described in entries:
        lines += ["", f"{'#' * min(len(path) + 1, 4)} `{usage.removeprefix('larder ')}`", "", *about]
        if path[1:] and path[1:] == path[1:2] and plain[path[1]]:
            lines += ["", f"[Verbs](../operate/command-line.md#verbs): {', '.join(plain[path[1]])}."]
        if len(path) == 2 and of_record.get(path[1]):
            below = {option.split("`")[1].split()[0] for option in described}
            lines += ["", f"*record*: {', '.join(['these options', *_bundled(sorted(of_record[path[1]] - below))])}."]
        lines += ["", *described] if described else []
    return "\n".join(lines) + "\n"


def _split(command: click.Command, records: list[Record], elsewhere: set[Record]) -> tuple[list[Record], list[str]]:
    """Return the options that only this command describes, and the names of the others."""
    names = _bundled([_name(record) for record in records if record in elsewhere])
    if isinstance(command, click.Group):
        names = []
    return [each for each in records if each not in elsewhere], [name for name in names if name != "*API*"]


def _usage(path: list[str], command: click.Command, context: click.Context) -> str:
    arguments = [each.make_metavar(context) for each in command.params if isinstance(each, click.Argument)]
    return " ".join([*path[len(path) > 2 :], *arguments])


def _is_plain(path: list[str], own: list[Record], about: list[str]) -> bool:
    """Return whether the table of verbs says all about a command of a noun."""
    said = re.split(r"(?<=\.) ", " ".join(about))
    return len(path) > 2 and path[-1] in VERBS and not own and not set(said[1:]) - VERBS[path[-1]]


def _often(times: int, commands: Iterable[Collection[Record]]) -> set[Record]:
    """Return the options of at least so many commands: of each name, the one that most commands have."""
    uses = Counter(record for records in commands for record in records)
    often = {_name(record): record for record, count in reversed(uses.most_common()) if count >= times}
    return set(often.values())


def _bundled(names: list[str]) -> list[str]:
    for bundle, options in BUNDLES.items():
        if set(options) <= set(names):
            names = [f"*{bundle}*", *(name for name in names if name not in options)]
    return [name if name.startswith("*") else f"`{name}`" for name in names]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _records(command: click.Command, context: click.Context) -> list[Record]:
    found = [each.get_help_record(context) for each in command.params if isinstance(each, click.Option)]
    return [(record[0].replace(" RANGE", ""), record[1]) for record in found if record is not None]


def _name(record: Record) -> str:
    return record[0].split(",")[0].split()[0].split("/")[0]


def _option(record: Record) -> str:
    declared, about = record
    return f"- `{declared}`: {' '.join(about.split())}"


def _walk(command: click.Command, context: click.Context) -> Iterator[tuple[list[str], click.Command, click.Context]]:
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


def findings(note: str) -> str:
    """`reference/findings.md`: every type of finding."""
    lines = [
        "# Findings",
        "",
        note,
        "",
        "What the management plane finds wrong, which `GET /api/v1/findings`, the dashboard, `larder why`, "
        "`larder status` and `larder doctor` show. Types are in the order in which they explain trouble.",
        "",
        "| code | severity | what to do |",
        "|---|---|---|",
    ]
    for code, declared in FINDING_TYPES.items():
        link = f" ([runbook](../operate/runbook.md#{declared.runbook}))" if declared.runbook else ""
        lines.append(f"| `{code}` | {declared.severity} | {declared.to_do}{link} |")
    return "\n".join(lines) + "\n"


def series_page(note: str) -> str:
    """`reference/series.md`: every series."""
    lines = [
        "# Series",
        "",
        note,
        "",
        "`GET /api/v1/series` returns these series; [Series](../operate/observability.md#series) says how they are "
        "kept. A gauge is the mean over a step and the sum over nodes, a rate is per second, and a ratio is that of "
        "the sums of a step. The column *for* says whether a series is kept for the fleet, each node or each tenant.",
        "",
        "| name | unit | for | means |",
        "|---|---|---|---|",
        *(
            f"| `{each.name}` | {each.unit} | {', '.join(each.scopes)} | {cell(each.meaning)} |"
            for each in SERIES.values()
        ),
    ]
    return "\n".join(lines) + "\n"


def metric_page(note: str) -> str:
    """`reference/metrics.md`: every metric."""
    lines = [
        "# Metrics",
        "",
        note,
        "",
        "`GET /metrics` serves metrics in Prometheus' text format, and as OpenMetrics with exemplars (the trace of "
        "a slow request or push) to a scraper that prefers it. Counters end in `_total`. The number of label values is "
        f"bounded: the {bounded.TENANT_LABELS} largest tenants, {node_metrics.SPACE_LABELS} spaces, "
        f"{node_metrics.ENGINE_LABELS} engines and {manager_metrics.PIN_LABELS} pins by name, and `{OTHER}` "
        f"for the rest. No counter falls when a tenant moves to or from `{OTHER}`.",
        "",
        "Histograms have classic buckets: Prometheus accepts native ones only in its protobuf format.",
    ]
    for title, module in (
        ("Nodes", node_metrics),
        ("Tenants", tenant_metrics),
        ("Managers", manager_metrics),
        ("Node activity", node_activity_metrics),
        ("Pins", pin_metrics),
        ("Processes of both planes", process_metrics),
        ("GPU copies", gpu_copy_metrics),
        ("Tiers behind memory", tier_metrics),
        ("KV events", kv_event_metrics),
        ("Queues and stores in shared memory", ipc_metrics),
        ("LMCache gateway", gateway_metrics),
        ("Under LMCache's names", lmcache_metrics),
    ):
        lines += ["", f"## {title}", "", "| metric | type | unit | labels | what |", "|---|---|---|---|---|"]
        for declared in _declared(module):
            labels = ", ".join(f"`{label}`" for label in declared.labels)
            lines.append(
                f"| `{declared.sample}` | {declared.kind} | {declared.unit} | {labels} | {cell(declared.help)} |"
            )
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
    lines = [
        "# Events",
        "",
        note,
        "",
        "The stream `GET /api/v1/events` sends these events. `larder events` and `GET /api/v1/events/history` list the "
        "stored ones. Each has a time (`at`), the node on which it happened or that was changed (`node`), the "
        "principal that caused it (`actor`), and the fields below. Times are Unix seconds, names ending in `_s` are "
        "seconds, and names with `bytes` are bytes.",
        "",
        "A data plane publishes `dataplane.block_events_per_s` events of *block traffic* one by one and sums up the "
        "rest; a management plane sums them up by tenant and reason four times a second, and the history keeps one "
        "sum of refused blocks a minute after the first. When a queue is full, block traffic is dropped first, "
        "refusals last of it; `larder_events_dropped_total` counts dropped events by name.",
    ]
    sections: dict[str, tuple[type[EventStruct], ...]] = {
        "Management plane": OF_MANAGEMENT_PLANE,
        "Data planes": (NodeStats, *OF_DATA_PLANES),
    }
    for title, kinds in sections.items():
        lines += ["", f"## {title}", "", "| event | severity | stored | fields | what |", "|---|---|---|---|---|"]
        for kind in sorted(kinds, key=name_of):
            about = cell(_documented(kind)) + (" Block traffic." if kind.per_block else "")
            stored = "yes" if kind.stored else "no"
            lines.append(f"| `{name_of(kind)}` | {kind.severity} | {stored} | {_event_fields(kind)} | {about} |")
    lines += [
        "",
        "## Fields",
        "",
        "These fields have the same meaning in every event.",
        "",
        "| field | what |",
        "|---|---|",
    ]
    lines += [f"| `{name}` | {text} |" for name, text in sorted(COMMON_FIELDS.items())]
    return "\n".join(lines) + "\n"


def _event_fields(kind: type[EventStruct]) -> str:
    """Return the fields of an event, with the meaning of those that only this event has."""
    if kind is NodeStats:
        return "the state of the node, see `GET /api/v1/nodes/{name}`"
    described = descriptions(kind)
    fields = [field.name for field in msgspec.structs.fields(kind) if field.name not in ("at", "node")]
    return "; ".join(
        f"`{name}`: {cell(described[name]).removesuffix('.')}" if name in described else f"`{name}`" for name in fields
    )


def wire(note: str) -> str:
    """`reference/wire.md`: every message between processes."""
    lines = [
        "# Wire protocol",
        "",
        note,
        "",
        "Messages are MessagePack with a tag, except those of the holder. Versions: engine protocol "
        f"{engine.VERSION}, control protocol {messages.VERSION}, enrolment {join.VERSION}. Larder never unpickles "
        "data. Events are in [Events](events.md); the layout of shared memory is in "
        "`dataplane/protocol/layout.py`, and the LMCache wire in [LMCache gateway](lmcache-gateway.md).",
    ]
    for title, about, union in CHANNELS:
        lines += ["", f"## {title}", "", about, "", "| message | fields | what |", "|---|---|---|"]
        for kind in get_args(union) if isinstance(union, UnionType) else (union,):
            hints = get_type_hints(kind)
            fields = ", ".join(f"`{name}: {_type(hints[name])}`" for name in kind.__struct_fields__)
            lines.append(f"| `{_tag(kind)}` | {cell(fields)} | {cell(_documented(kind))} |")
    _, _, text = (holder_messages.__doc__ or "").partition("\n\n")
    lines += ["", "## Holder", "", f"Version {holder_messages.VERSION}. {text.strip()}"]
    return "\n".join(lines) + "\n"


def _tag(kind: type[msgspec.Struct]) -> str:
    return str(kind.__struct_config__.tag)


def _documented(kind: type[msgspec.Struct]) -> str:
    text = kind.__dict__.get("__doc__") or ""
    return "" if text.startswith(f"{kind.__name__}(") else text


def _type(hint: Any) -> str:
    text = str(hint) if get_args(hint) else getattr(hint, "__name__", str(hint))
    return _MODULE.sub("", text)
