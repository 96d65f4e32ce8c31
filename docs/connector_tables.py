"""`docs/reference/vllm-connector.md` and `sglang-backend.md`: settings and metrics of the connectors."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import msgspec

from dataplane.engines.settings import PREFIX
from dataplane.engines.sglang.settings import BackendSettings
from dataplane.engines.vllm import settings
from docs.settings_table import texts

METRICS = Path(settings.__file__).with_name("metrics.py")


def counters() -> dict[str, str]:
    """Return the help text of each counter, from the module's source: only vLLM's environment can import the module."""
    for node in ast.parse(METRICS.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COUNTERS":
            return dict(ast.literal_eval(node.value))
    raise LookupError("COUNTERS")


def _rows(kind: type[msgspec.Struct]) -> list[str]:
    """Return the table of a connector's settings."""
    described = texts(kind)
    return [
        "| key | default | means |",
        "|---|---|---|",
        *(
            f"| `{PREFIX}{field.name}` | `{json.dumps(field.default)}` | {described[field.name]} |"
            for field in msgspec.structs.fields(kind)
        ),
    ]


def sglang(note: str) -> str:
    """Return the page on SGLang's backend."""
    return "\n".join(
        [
            "# SGLang backend",
            "",
            note,
            "",
            "[SGLang](../engines/sglang.md) describes how to use it.",
            "",
            "## Settings",
            "",
            "Settings are keys of `--hicache-storage-backend-extra-config`. If a value is invalid, or a key that "
            "starts with `larder.` is unknown, SGLang ends when it starts, with an error that names the key.",
            "",
            *_rows(BackendSettings),
            "",
        ]
    )


def vllm(note: str) -> str:
    """Return the page on vLLM's connector."""
    return "\n".join(
        [
            "# vLLM connector",
            "",
            note,
            "",
            "[vLLM in five minutes](../engines/vllm.md) describes how to use it.",
            "",
            "## Settings",
            "",
            "Settings are keys of `kv_connector_extra_config`. If a value is invalid, or a key that starts with "
            "`larder.` is unknown, vLLM ends when it starts, with an error that names the key.",
            "",
            *_rows(settings.ConnectorSettings),
            "",
            "## Metrics",
            "",
            "The metrics are counters in vLLM's own `/metrics`, with vLLM's labels.",
            "",
            "| metric | what |",
            "|---|---|",
            *(f"| `vllm:larder_{name}_total` | {text} |" for name, text in counters().items()),
            "| `vllm:larder_refused_blocks_total` | Blocks that Larder refused to store, by `reason`: an "
            "[error code](errors.md). |",
            "",
        ]
    )
