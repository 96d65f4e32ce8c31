"""Make a database with at least one row in each table, as the release of commit 68a4660 writes it.

`before_the_renames.sql` (the database) and `before_the_renames.json` (what that release answered over HTTP, and the
secrets of its callers) were made once, with the code and the tests of that commit:

    git worktree add /tmp/old 68a4660 && make -C /tmp/old .venv/.installed && cd /tmp/old
    PYTHONPATH=. .venv/bin/python .../tests/app/upgrade/make_database.py .../tests/app/upgrade

It does not run with the code of today: a release that changes the schema adds a script and a database of its own.
"""

# mypy: ignore-errors
import asyncio
import json
import sqlite3
import sys
import tempfile
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import httpx
from tokenizers import Tokenizer, models, pre_tokenizers

from app.services.usage_ledger import UsageLedger
from dataplane.protocol.control.snapshots import Fault
from dataplane.protocol.join import Join, parse_token
from dataplane.protocol.usage import UsageCounters
from tests.app.callers import ADMIN, guarding, made
from tests.app.fake_node import FakeNode

NAME = "before_the_renames"
FAR = 2_100_000_000.0
"""July 2036, as far away as pins may end: nothing in the fixture ends before."""
PIN = {"model": "llama", "tokens": list(range(8)), "chunk_tokens": 4}
LISTS = (
    *("quotas", "pins", "policies", "ceilings", "rates", "tokenizers", "tenants", "tokens", "join-tokens"),
    *("nodes", "pushes", "events/history", "audit", "audit/verify", "usage?from=0", "replicas", "export"),
)


def tokenizer() -> str:
    words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(16)} | {"<unk>": 16}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return words.to_str()


async def fill(plane, node) -> dict[str, str]:
    async def send(
        method: str, path: str, body=None, code: int | None = None, **headers: str
    ) -> httpx.Response:
        headers = {"If-Match": "*", **headers} if method != "POST" else headers
        answer = await plane.http.request(method, f"/api/v1/{path}", json=body, headers=headers)
        if answer.status_code == 412:
            answer = await plane.http.request(method, f"/api/v1/{path}", json=body)
        assert answer.is_success if code is None else answer.status_code == code, (path, answer.text)
        return answer

    await send(
        "PUT",
        "tokenizers/words",
        {
            "model": "llama",
            "tokenizer": tokenizer(),
            "chat_template": "{{ messages[0]['content'] }}",
            "special_tokens": {"bos_token": "<s>"},
            "add_special_tokens": False,
            "note": "w0 to w15",
        },
    )
    await send(
        "PUT",
        "quotas/acme?wait=5s",
        {
            "limit_bytes": "256MiB",
            "floor_bytes": "16MiB",
            "weight": 2.5,
            "pin_budget_bytes": "8MiB",
            "store_rate_bytes": 1 << 20,
            "on_exceed": "reject",
            "note": "trial",
            "managed_by": "fleet-repo",
        },
    )
    await send(
        "PUT",
        "quotas/acme?wait=5s",
        {
            "limit_bytes": "512MiB",
            "floor_bytes": "16MiB",
            "weight": 2.5,
            "pin_budget_bytes": "8MiB",
            "store_rate_bytes": 1 << 20,
            "on_exceed": "reject",
            "note": "bought",
            "managed_by": "fleet-repo",
        },
    )
    await send("PUT", "quotas/_default?wait=5s", {"limit_bytes": None, "weight": 0.5, "mode": "observe"})
    await send("PUT", "quotas/zoned?wait=5s", {"limit_bytes": 4096, "selector": {"zone": "b"}})
    await send("PUT", "quotas/gone?wait=5s", {"limit_bytes": 1})
    await send("DELETE", "quotas/gone?wait=5s")
    for strength in ("soft", "guaranteed", "permanent"):
        for tier in ("host", "gpu"):
            pin = {
                **PIN,
                "tenant": "acme",
                "strength": strength,
                "tier": tier,
                "note": f"{strength} on {tier}",
            }
            await send("PUT", f"pins/{strength}-{tier}?wait=5s", pin)
    await send("PUT", "pins/refreshed?wait=5s", {**PIN, "ttl_s": 86_400 * 3500, "refresh_on_hit": True})
    await send("PUT", "pins/ends?wait=5s", {**PIN, "expires_at": FAR, "selector": {"zone": "b"}})
    keys = [sha256(bytes([n])).hexdigest() for n in range(3)]
    await send("PUT", "pins/by-keys?wait=5s", {"model": "llama", "keys": keys, "managed_by": "fleet-repo"})
    await send("PUT", "pins/by-text?wait=5s", {"model": "llama", "text": "w1 w2 w3 w4", "chunk_tokens": 2})
    await send(
        "PUT",
        "policies/default?wait=5s",
        {
            "algorithm": "s3fifo",
            "admission": True,
            "admission_idle_s": 60,
            "high_watermark": 0.9,
            "low_watermark": 0.8,
            "note": "all",
        },
    )
    await send(
        "PUT", "policies/zone-b?wait=5s", {"algorithm": "lfu", "selector": {"zone": "b"}, "priority": 7}
    )
    await send(
        "PUT",
        "ceilings/acme",
        {
            "max_limit_bytes": "1GiB",
            "max_floor_bytes": 0,
            "max_weight": 3,
            "max_ttl_s": 3600,
            "strengths": ["soft"],
            "no_bound": ["max_store_rate_bytes"],
            "note": "by contract",
        },
    )
    await send("PUT", "rates/llama", {"model": "llama", "prefill_tokens_per_s": 1000, "note": "measured"})
    await send(
        "PUT", "rates/llama-one-space", {"model": "llama", "prefill_tokens_per_s": 500, "space": "f" * 32}
    )

    tokens = {
        "viewer": await made(plane, "viewer"),
        "operator": await made(plane, "operator", "operator", tenants=["acme"]),
        "admin": await made(plane, "admin-of-the-night", "admin", expires_at=FAR),
    }
    await send("GET", "whoami", Authorization=f"Bearer {tokens['viewer']}")
    await send("PUT", "quotas/other", {"limit_bytes": 1}, 403, Authorization=f"Bearer {tokens['operator']}")
    async with httpx.AsyncClient(
        base_url=str(plane.http.base_url), trust_env=False, verify=False, timeout=60
    ) as browser:
        for name in ("operator", "admin"):
            login = await browser.post("/api/v1/session", json={"token": tokens[name]})
            tokens[f"session of {name}"] = login.cookies["larder_session"]

    join = await send(
        "POST", "join-tokens", {"name": "rack 7", "labels": {"zone": "b"}, "uses": 2, "ttl_s": None}
    )
    token = parse_token(join.json()["token"])
    ask = Join(
        1, "node-b", "0", {"rack": "7"}, "tcp://127.0.0.1:9", "tcp://127.0.0.1:10", token.id, token.secret
    )
    answer = await plane.app.parts.enrolment.decide(ask, "k" * 40, "127.0.0.1")
    assert not getattr(answer, "code", ""), answer
    await send("PATCH", "nodes/node-a", {"labels": {"zone": "a"}})
    await send("POST", "nodes/node-a/resize", {"pool_bytes": "2GiB"})
    await send("POST", "nodes/node-a/drain", {"on": True})

    node.faults = [Fault("quotas[0].limit_bytes", "bad_field", "more than there is")]
    await send("PUT", "quotas/refused?wait=2s", {"limit_bytes": 1 << 40})
    node.faults = []
    await send("PUT", "quotas/refused?wait=5s", {"limit_bytes": 1 << 20})

    node.used = [
        UsageCounters(1, "acme", "llama", "f" * 32, 7200, 512, 256, 4, 4096, 1, 1024, {"pool_full": 3})
    ]
    parts = plane.app.parts
    ledger = UsageLedger(parts.operations, parts.fleet, parts.database, 60, 60)
    await ledger.read()
    await ledger.write()
    async with asyncio.timeout(60):
        while not (await plane.get("/api/v1/events/history"))["items"]:
            await asyncio.sleep(0.1)
        while not (await plane.get("/api/v1/replicas"))["items"]:
            await asyncio.sleep(0.1)
    return tokens


async def main(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        where = Path(folder)
        node = FakeNode(where)
        await node.start()
        async with guarding(where, join_url="tcp://127.0.0.1:*") as plane:
            await plane.until_state("in_sync")
            tokens = await fill(plane, node)
            await asyncio.sleep(3)  # events are written in batches
            answers = {path: await plane.get(f"/api/v1/{path}") for path in LISTS}
            with (
                closing(sqlite3.connect(where / "larder.db")) as source,
                closing(sqlite3.connect(":memory:")) as copy,
            ):
                source.backup(copy)  # while it runs: a manager that stops takes its row away
                copy.execute("UPDATE sessions SET expires_at = ?", (FAR,))
                copy.execute("UPDATE replicas SET seen_at = ?", (FAR,))
                for (table,) in copy.execute(
                    "SELECT name FROM sqlite_schema WHERE type = 'table'"
                ).fetchall():
                    assert copy.execute(f"SELECT count(*) FROM {table}").fetchone()[0], f"{table} is empty"
                dump = "\n".join(copy.iterdump()) + "\n"
        await node.stop()
    dump = dump.replace(str(where), "/tmp/larder")
    secrets = json.dumps({"admin": ADMIN, **tokens})
    (target / f"{NAME}.sql").write_text(dump)
    (target / f"{NAME}.json").write_text(
        json.dumps({"callers": json.loads(secrets), "answers": answers}, indent=1, sort_keys=True) + "\n"
    )


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
