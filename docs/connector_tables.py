"""`docs/reference/vllm-connector.md` and `sglang-backend.md`: settings and metrics of the connectors."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import msgspec

from app.descriptions import descriptions
from dataplane.engines.settings import PREFIX
from dataplane.engines.sglang.settings import BackendSettings
from dataplane.engines.vllm import settings
from dataplane.protocol.misses import MISS_REASONS

METRICS = Path(settings.__file__).with_name("metrics.py")

REQUESTS_WITHOUT_KEYS = (
    "## Requests without keys",
    "",
    "If it is not known what a request is computed from, it is neither loaded nor saved. "
    "`vllm:larder_unkeyed_requests_total` counts such requests, and vLLM's log has one line in ten seconds for each "
    "reason. Requests with resumable (streaming) input have no keys either; they do not count.",
    "",
    "| `reason` | the request's |",
    "|---|---|",
    "| `salt` | `cache_salt` is not a valid [tenant name](../operate/tenants.md) |",
    "| `adapter` | LoRA files cannot be read, or have changed since vLLM loaded them |",
    "| `media` | images, audio or video have names (`multi_modal_uuids`) in place of digests, or vLLM hashes nothing: "
    "no prefix caching, and `--mm-processor-cache-gb 0` |",
    "| `pooling` | `pooling_params` have `extra_kwargs`, such as token types |",
    "",
    "Adapters are identified by a digest of their files: name, path and times do not count. The first request of an "
    "adapter waits until its files are read, for at most five seconds. After an adapter was trained again, load it "
    "from another path, or with `load_inplace`: vLLM then keeps its own blocks of the contents before, and requests "
    "that use such blocks are not shared. The id of a Hugging Face repository needs `/v1/load_lora_adapter` or "
    "`HF_HUB_OFFLINE=1`, because vLLM otherwise may download a newer commit when it loads.",
    "",
    "Larder cannot know that",
    "",
    "* an adapter's files change during the step in which vLLM reads them, differ on other hosts of one engine, or are "
    "loaded by `collective_rpc`;",
    "* a client made up the digest of an image, or named it and sent `mm_processor_kwargs`, which vLLM hashes "
    "together. That affects requests with the same salt only.",
)


MISSES = (
    "The object `larder` in the `kv_transfer_params` of a response, and from vLLM 0.33 on of the last chunk of a "
    "stream, has",
    "",
    "* `loaded_tokens`, and `loaded_from`: where they were when the request arrived, `host` (memory of the node), "
    "`disk`, or `remote` (other tiers);",
    "* `missed_tokens`: tokens that were computed although a cache could have had them, of whole chunks, or of a "
    "prompt that is shorter than one;",
    "* `reason`: why the first of these was missing, by the table; `not_known` if the data plane did not answer in "
    "time. `cause` and `cause_at` (Unix seconds) say more.",
    "",
    "`larder why --request ID` and `GET /api/v1/requests?id=` say the same afterwards, for the id in the response; "
    "tokens that are limited to tenants see requests of their tenants alone. A node remembers the last 4,096 requests, "
    "and for 131,072 blocks why they were removed or refused, until its data plane restarts. "
    "`larder_tenant_missed_tokens_total` counts missed tokens by reason. Reports cost look-ups nothing; SGLang makes "
    "none. Requests of LMCache's clients are recorded when their look-up ends; those whose hits were freed unread are "
    "not.",
    "",
    "From vLLM 0.32 on, `vllm:prompt_tokens_cached_by_source` counts `remote` as `external_unspecified`. The span "
    "`vllm.scheduled` of a traced request has `gen_ai.usage.cache_read.input_tokens`.",
)


def counters() -> dict[str, str]:
    """Return the help text of each counter, from the module's source: only vLLM's environment can import the module."""
    return {
        name: text
        for node in ast.parse(METRICS.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("COUNTERS", "BY_REASON")
        for name, text in ast.literal_eval(node.value).items()
    }


def _rows(kind: type[msgspec.Struct]) -> list[str]:
    """Return the table of a connector's settings."""
    described = descriptions(kind)
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
            "",
            *REQUESTS_WITHOUT_KEYS,
            "",
            "## Why tokens are missing",
            "",
            *MISSES,
            "",
            "| `reason` | means |",
            "|---|---|",
            *(f"| `{reason}` | {meaning} |" for reason, meaning in MISS_REASONS.items()),
            "",
        ]
    )
