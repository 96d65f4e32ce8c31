"""`docs/reference/tier-types.md`: types of tiers with their parameters, and what maps to other systems; and
`docs/reference/tier-reasons.md`: why blocks were not copied, loaded, moved or compressed."""

from __future__ import annotations

import json

import msgspec

from app.descriptions import descriptions
from dataplane.core.tiering.reasons import LOST, NOT_COMPRESSED, NOT_MOVED, REFUSED
from dataplane.tiers.registry import tier_type

TYPES = {
    "disk": "Preallocated files on local disks, for one node. [Tier format](tier-format.md) describes the files.",
    "mooncake": "Mooncake Store: the memory of many nodes behind one `mooncake_master`, over TCP or "
    "RDMA. On the nodes, it needs `pip install mooncake-transfer-engine-non-cuda` (with CUDA: "
    "`mooncake-transfer-engine`) and Debian's `libibverbs1`, `libcurl4` and `libnuma1`. "
    "Without the wheel, the tier is `not opened`. "
    "Larder's tests run version 0.3.13.post1 on CPU over TCP (0.3.13 needs CUDA). "
    "Mooncake cannot list keys, so a node counts only the blocks that it wrote since it opened the "
    "tier. It still finds and loads older blocks, and Mooncake evicts them. Blocks are lost when the "
    "master ends, or the process that provided their memory (`segment_bytes`). Calls cannot be "
    "cancelled: a tier that hangs is taken out of service. Larder does not authenticate to Mooncake.",
    "redis": "Redis, and what speaks its protocol, such as Valkey: one server, or a Redis Cluster. "
    "Larder's tests run Redis 7.0. Each value is the block's header and its data, as one string. "
    "The user needs the commands "
    "`SET`, `GET`, `GETEX` (with `ttl_s`), `GETRANGE`, `UNLINK`, `SCAN` and `PING`, and `CLUSTER "
    "SLOTS` in a cluster. Bound the "
    "server's memory with `maxmemory`: a block that the server evicted is a miss, and a server that "
    "refuses a block "
    "for want of memory is a full tier.",
    "s3": "S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage. Needs `pip "
    "install 'larder[s3]'`. Each "
    "block is one object, also small ones. On S3 the identity needs `s3:ListBucket`, without which "
    "a missing object looks like a "
    "refusal, and `s3:GetObject`, `s3:PutObject`, `s3:DeleteObject`. Larder's tests run a server "
    "that speaks S3; of the other "
    "two, only that requests and refusals are understood. Blocks do not expire: set a lifecycle "
    "rule on the bucket. The field `compress` of the record may be `zstd` or `fp8` "
    "([Compress blocks](../operate/tiers.md#compress-blocks)).",
}

ELSEWHERE = (
    ("fs, fs_native", "disk", "`base_path` is one of `directories`; `use_odirect` is `direct_io`"),
    ("raw_block", "disk", "files in a directory of a file system instead of a raw device"),
    ("resp", "redis", "`host` and `port` are one of `servers`; `num_workers` is `connections`"),
    (
        "valkey",
        "redis",
        "`startup_nodes` are `servers`, `cluster_mode` is `cluster`, `tls_enable` is `tls`, "
        "`database_id` is `database`, "
        "`ttl_seconds` is `ttl_s`, `connection_timeout` is `connect_timeout_s`; `request_timeout` "
        "is the deadline of each call",
    ),
    (
        "s3",
        "s3",
        "`s3_endpoint` is `endpoint`, `s3_region` is `region`, the two keys are references in "
        "`credentials`, "
        "`disable_tls` is an `http://` endpoint",
    ),
    ("mooncake_store", "mooncake", "`master_server_address` is `master`, `global_segment_size` is `segment_bytes`"),
    ("nixl_store, nixl_native", "", ""),
    ("hf3fs, dax, bigtable, aerospike", "", ""),
    ("p2p", "", ""),
    ("plugin, native_plugin", "an entry point", "group `larder.tiers`, naming a `TierType`"),
)


def page(note: str) -> str:
    lines = [
        "# Tier types",
        "",
        note,
        "",
        "A tier is a store behind the memory of a node. This page describes the library "
        "`dataplane.tiers`; [Tiers](../operate/tiers.md) says how to use it. The settings of a node "
        "declare a tier of "
        "the type `disk`, and records declare tiers of any type. "
        "Types are entry points of the group `larder.tiers`.",
        "",
        "Shared tiers (`mooncake`, `redis`, `s3`) name each block `larder/1/<cluster>/<space>/<key>`, in "
        "hexadecimal, so that clusters can "
        "share a server. Every load is compared with the header and the checksum before it counts; "
        "a value that does not "
        "match is deleted. Each node counts the blocks that it wrote, except those "
        "that it deleted or "
        "found missing, and those that expired; its budget limits the blocks that it counts. "
        "[After a start](../operate/tiers.md#tiers-that-nodes-share), it lists the tier to find the "
        "blocks that it wrote before, except with Mooncake, which cannot list blocks.",
        "",
        "Secrets are references: `env:NAME` names a variable of the environment, `file:/path` a "
        "file that only its owner can "
        "read (mode 0600). Messages never contain a secret, or text of a server that could repeat one.",
    ]
    for name, text in TYPES.items():
        kind = tier_type(name).parameters
        described = descriptions(kind)
        lines += ["", f"## `{name}`", "", text, "", "| parameter | default | means |", "|---|---|---|"]
        for field in msgspec.structs.fields(kind):
            lines.append(f"| `{field.name}` | {_default(field)} | {described[field.name]} |")
    lines += [
        "",
        "## A type of your own",
        "",
        "A package that is installed beside the data plane can add a type. It has an entry point of the "
        "group `larder.tiers` that names a `TierType` (`dataplane.tiers.registry`). A `TierType` has the "
        "struct of the parameters, and a function that returns an object with the methods of "
        "`dataplane.tiers.tier.Tier`. `shared=True` means that other nodes write to the same store. "
        "Larder registers its own types in the same way. If a record names a type whose package cannot "
        "be imported, the message says so.",
        "",
        "<!-- not run: part of another package -->",
        "```toml",
        '[project.entry-points."larder.tiers"]',
        'tape = "acme_tape.tier:TYPE"  # TYPE = TierType(TapeParameters, TapeTier, shared=True)',
        "```",
        "",
        "`tests/tiers/conformance.py` has the tests that every type of Larder passes.",
        "",
        "## Adapters of LMCache",
        "",
        "What to use in place of an L2 adapter of LMCache 0.5.6. Stored bytes are not compatible.",
        "",
        "| LMCache | Larder | parameters |",
        "|---|---|---|",
        *(
            f"| {theirs} | {f'`{ours}`' if ours in TYPES else ours or 'none'} | {what} |"
            for theirs, ours, what in ELSEWHERE
        ),
        "",
        "`max_capacity_gb` is the budget of a tier. `username` and `password` of LMCache are plain "
        "text; Larder takes references.",
    ]
    return "\n".join(lines) + "\n"


def reasons(note: str) -> str:
    lines = [
        "# Reasons of tiers",
        "",
        note,
        "",
        "Nodes count blocks that were not copied to a tier, not loaded from it, or not moved, by reason. Statistics of "
        "nodes, metrics and results of moves use these words. [Tiers](../operate/tiers.md) describes the limits.",
    ]
    for title, meant, table in (
        ("`refused` of a tier", "Blocks that were not copied to the tier.", REFUSED),
        ("`lost` of a tier", "Blocks that were not loaded from the tier.", LOST),
        ("`not_compressed` of a tier", "Blocks that were copied as they are.", NOT_COMPRESSED),
        (
            "`refused` of a move",
            "Blocks that were not moved, or not removed from where they were. If the target of a move refused a block, "
            "or a block could not be loaded or encoded, its reason is one of the tables above.",
            NOT_MOVED,
        ),
    ):
        lines += ["", f"## {title}", "", meant, "", "| reason | means |", "|---|---|"]
        lines += [f"| `{reason}` | {means} |" for reason, means in sorted(table.items())]
    return "\n".join(lines) + "\n"


def _type(name: str) -> str:
    return f"`{name}`" if name in TYPES else name or "none"


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return f"`{json.dumps(value)}`" if value not in ("", {}, []) else ""
