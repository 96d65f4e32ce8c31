"""An example of every request body, which the API description shows and Swagger UI fills in."""

from typing import Any

_TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "hello": 1, "world": 2}, "unk_token": "<unk>"},
}

EXAMPLES: dict[str, Any] = {
    "AdoptPost": {"floor_bytes": "256MiB", "note": "found"},
    "ApplyPut": {
        "document": {
            "apiVersion": "larder/v1",
            "managed_by": "team-search",
            "quotas": [{"tenant": "search", "limit_bytes": "512MiB"}],
        },
        "dry_run": True,
    },
    "AlertsPost": {
        "version": "4",
        "alerts": [
            {
                "status": "firing",
                "labels": {"alertname": "LarderTenantRefused", "severity": "warning", "tenant": "acme"},
                "annotations": {"summary": "Blocks of acme are refused."},
                "startsAt": "2026-01-31T12:00:00Z",
                "endsAt": "0001-01-01T00:00:00Z",
            }
        ],
    },
    "CeilingPatch": {"max_weight": 4},
    "CeilingPut": {
        "max_limit_bytes": "8GiB",
        "max_floor_bytes": "1GiB",
        "max_weight": 2,
        "max_ttl_s": 604800,
        "strengths": ["soft", "guaranteed"],
    },
    # Without `dry_run`, one click in Swagger UI would drop everything.
    "ClearPost": {"node": "node-1", "confirm": True, "dry_run": True},
    "DrainPost": {"on": True},
    "ExpelPost": {"on": True, "force": False, "kill": True},
    "DryRunPost": {"quotas": {"acme": {"limit_bytes": "4GiB"}}},
    "JoinTokenPost": {"name": "rack-7", "labels": {"rack": "7"}, "uses": 1, "ttl_s": 3600},
    "LookupPost": {"model": "llama", "tenant": "acme", "tokens": [1, 2, 3, 4], "chunk_tokens": 4},
    "CompressPost": {"tier": "archive", "tenant": "acme", "dry_run": True},
    "MovePost": {"tenant": "acme", "tier": "nvme", "release": True, "dry_run": True},
    "NodePatch": {"labels": {"zone": "b"}},
    "AgentSessionPost": {"tenant": "acme", "seconds": 60},
    "RestartPost": {"fresh": False, "dry_run": True},
    "PinExtend": {"ttl_s": 172800},
    "PinPatch": {"strength": "soft", "tier": "gpu", "note": "until the launch"},
    "PinPut": {"model": "llama", "tenant": "acme", "tokens": [1, 2, 3, 4], "chunk_tokens": 4, "ttl_s": 3600},
    "PolicyPatch": {"algorithm": "arc"},
    "PolicyPut": {"algorithm": "s3fifo", "admission": True, "selector": {"zone": "a"}, "priority": 10},
    "QuotaPatch": {"limit_bytes": "8GiB", "note": None},
    "QuotaPut": {"limit_bytes": "4GiB", "floor_bytes": "256MiB", "weight": 2, "note": "trial"},
    "RatePatch": {"prefill_tokens_per_s": 15000},
    "RatePut": {"model": "llama", "prefill_tokens_per_s": 12000, "note": "measured"},
    "ResizePost": {"pool_bytes": "8GiB"},
    "SweepPost": {"model": "llama", "tenant": "acme"},
    "SessionPost": {"token": "larder_ID_SECRET"},
    "TierPatch": {"budget_bytes": "4TiB"},
    "TierPut": {
        "type": "disk",
        "budget_bytes": "2TiB",
        "parameters": {"directories": ["/mnt/nvme0/larder"]},
        "selector": {"rack": "7"},
    },
    "TokenPatch": {"ttl_s": 7776000},
    "TokenPost": {"name": "ci", "role": "operator", "tenants": ["acme"], "ttl_s": 7776000},
    "TokenizerPatch": {"note": "with the template of June"},
    "TokenizerPut": {"model": "llama", "tokenizer": _TOKENIZER},
    "VerifyPost": {"tenant": "acme"},
}
