"""Series of times that are not kept come from a real Prometheus."""

import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from app.ingest.fleet import Fleet
from app.ingest.sampler import Sampler
from app.observe.series import SERIES
from app.schemas.views.series import SeriesAnswer
from app.services.base.principals import PLANE, Principal
from app.services.views.applied_changes import AppliedChanges
from app.services.views.marks import Marks
from app.services.views.prometheus_series import PrometheusSeries, Selection, promql
from app.services.views.series import SeriesQuery, SeriesService
from app.services.views.series_writer import DAY_S, SeriesWriter
from app.settings import load
from app.store.base.database import Database
from dataplane.base.settings import SettingsError
from tests.app.migrated import migrated_file
from tests.free_port import free_port
from tests.require import require

pytestmark = pytest.mark.anyio
SCRAPE_S = 1200
NOW = int(time.time()) // DAY_S * DAY_S
BEGAN = NOW - 45 * DAY_S
"""Prometheus has samples from here on, one in SCRAPE_S: each requests 120 blocks on two nodes, and every third hits."""


def samples() -> Iterator[str]:
    times = range(BEGAN, NOW, SCRAPE_S)
    for name, kind, of in (
        ("larder_pool_used_bytes", "gauge", lambda number: 100),
        ("larder_requested_blocks", "counter", lambda number: number * 120),
        ("larder_hit_blocks", "counter", lambda number: number * 40),
    ):
        yield f"# TYPE {name} {kind}"
        suffix = "_total" if kind == "counter" else ""
        for node in ("a", "b"):
            for number, at in enumerate(times):
                # Another manager became the leader, and both were scraped for some time.
                for instance in ["one", "two"][number > 1000 : 1 + (number > 500)]:
                    yield f'{name}{suffix}{{node="{node}",instance="{instance}"}} {of(number)} {at}'
    yield "# TYPE larder_tenant_bytes gauge"
    for tenant in ("acme", 'q"|.', "other"):
        for at in times:
            label = tenant.replace('"', '\\"')
            yield f'larder_tenant_bytes{{node="a",tenant="{label}"}} {len(tenant)} {at}'
    yield "# EOF"


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a Prometheus that has the samples."""
    for tool in ("prometheus", "promtool"):
        require(shutil.which(tool), f"{tool} is not installed (Debian: apt install prometheus)")
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "samples").write_text("\n".join(samples()) + "\n", encoding="utf-8")
    (folder / "prometheus.yml").write_text("scrape_configs: []\n", encoding="utf-8")
    options = ["--max-block-duration=1458h"]  # few blocks: each takes time
    made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", *options]
    subprocess.run([*made, str(folder / "samples"), str(folder / "data")], check=True, capture_output=True, timeout=120)
    port = free_port()
    command = [
        "prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.time=1y", f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 60
            while not _is_ready(port):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.terminate()


def _is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/-/ready", trust_env=False, timeout=5).is_success
    except httpx.TransportError:
        return False


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    url = f"sqlite+aiosqlite:///{tmp_path / 'larder.db'}"
    migrated_file(url)
    opened = Database(url)
    yield opened
    await opened.close()


async def queried(database: Database, url: str, query: SeriesQuery, by: Principal = PLANE) -> SeriesAnswer:
    sampler = Sampler()
    marks = Marks(database, AppliedChanges(database, Fleet(), 3600.0))
    writer = SeriesWriter(database, sampler)
    service = SeriesService(database, sampler, writer, marks, lambda: NOW, PrometheusSeries(url))
    return await service.answer(query, by)


async def test_longer_ranges_come_from_prometheus(database: Database, prometheus: str) -> None:
    names = ("used_bytes", "requested_blocks_per_s", "hit_ratio", "cpu_cores")
    answer = await queried(database, prometheus, SeriesQuery(names, (), (), 60 * DAY_S))
    assert answer.step_s == 7200
    used, requested, ratio, cpu = (each.values for each in answer.series)
    missing = 15 * DAY_S // 7200
    assert {*used[: missing - 1]} == {*requested[: missing - 1]} == {None}
    # Two nodes; the values of the two managers are not added up.
    assert {*used[missing + 1 : -1]} == {200}
    assert requested[missing + 20] == pytest.approx(2 * 120 / SCRAPE_S, rel=0.01)
    assert ratio[missing + 20] == pytest.approx(1 / 3, rel=0.01)
    assert {*cpu} == {None}
    assert answer.problem == "Prometheus has no cpu_cores"


async def test_a_node_and_tenants_are_selected_by_name(database: Database, prometheus: str) -> None:
    query = SeriesQuery(("used_bytes",), ("b", "nowhere"), ("acme", 'q"|.', "/other"), 40 * DAY_S)
    answer = await queried(database, prometheus, query)
    assert [each.values[-2] for each in answer.series] == [100, None, 4, 4, 5]
    limited = Principal(salts=frozenset(("acme", 'q"|.')))
    answer = await queried(database, prometheus, SeriesQuery(("used_bytes",), (), (), 40 * DAY_S), limited)
    assert answer.series[0].values[-2] == 8


async def test_shorter_ranges_do_not(database: Database) -> None:
    answer = await queried(
        database, "http://127.0.0.1:1", SeriesQuery(("used_bytes",), (), (), 30 * DAY_S, end=NOW - 60)
    )
    assert answer.problem == ""


async def test_a_prometheus_that_does_not_answer_is_a_problem_of_the_answer(database: Database) -> None:
    answer = await queried(database, "http://127.0.0.1:1", SeriesQuery(("used_bytes",), (), (), 31 * DAY_S))
    assert answer.problem.startswith("Prometheus did not answer as expected: ")
    assert {*answer.series[0].values} == {None}


async def test_most_series_have_a_metric() -> None:
    without = {name for name, each in SERIES.items() if promql(each, Selection(), 60) is None}
    assert without == {
        "acquire_seconds", "acquires_per_s", "cpu_cores", "gpu_copy_bytes", "hit_tokens_per_s", "leased_blocks",
        "limit_bytes", "nodes", "resident_bytes", "tier_hit_bytes_per_s", "tier_hit_ratio",
        "tier_hit_tokens_per_s", "would_refuse_blocks_per_s",
    }  # fmt: skip


@pytest.mark.parametrize("url", ["prometheus:9090", "ftp://p", "http://", "http://u:secret@p", "http://p?x=1"])
def test_a_url_that_is_not_of_a_prometheus_is_refused(tmp_path: Path, url: str) -> None:
    environ = {"LARDER_STATE_DIR": str(tmp_path), "LARDER_APP__PROMETHEUS_URL": url}
    with pytest.raises(SettingsError, match="prometheus_url: expected a URL such as") as refused:
        load(None, environ)
    assert "secret" not in str(refused.value)
