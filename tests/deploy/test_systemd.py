"""`larder install systemd`: written and unchanged files, and units that keep the cache across a restart.

No systemd runs here as process 1. `systemd-analyze verify` reads the units, and a test runs their commands with their
environment, and stops and kills the process group of each, as systemd does with a control group.
"""

import os
import signal
import subprocess
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from app.cli import larder
from app.settings import load, requires_token
from dataplane.client import Space, attach
from dataplane.holding.requests import describe
from dataplane.protocol.keys import chain
from dataplane.settings import load as load_data_plane
from tests import forked
from tests.dataplane.plane import wait_for
from tests.deploy.tools import node_in_sync, require_tool, running
from tests.free_port import free_port

UNITS = ["larder-dataplane.service", "larder-holder.service", "larder.service"]


def install(prefix: Path, *arguments: str) -> Result:
    return CliRunner().invoke(
        larder, ["install", "systemd", "--prefix", str(prefix), "--executable", "/bin/true", *arguments]
    )


def settings_of(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in unit.read_text(encoding="utf-8").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def environment_of(unit: Path) -> dict[str, str]:
    return dict(each.split("=", 1) for each in settings_of(unit).get("Environment", []))


@pytest.fixture(params=["--system", "--user"])
def manager(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/home/user/.config")
    return str(request.param)


@pytest.fixture
def units(manager: str, tmp_path: Path) -> Path:
    """The folder of the installed units."""
    assert install(tmp_path, manager).exit_code == 0
    return tmp_path / ("etc/systemd/system" if manager == "--system" else "home/user/.config/systemd/user")


def test_systemd_accepts_the_units(manager: str, units: Path, tmp_path: Path) -> None:
    require_tool("systemd-analyze")
    command = ["systemd-analyze", "verify", manager, *(str(units / name) for name in UNITS)]
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environ)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_units_set_known_settings_and_separate_the_planes(units: Path) -> None:
    settings = load(environ=environment_of(units / "larder.service"))
    assert not settings.app.embedded_data_plane
    managing, serving = (settings_of(units / name) for name in ("larder.service", "larder-dataplane.service"))
    assert managing["ExecStart"] == ["/bin/true up"]
    assert serving["ExecStart"] == ["/bin/true dataplane"]
    for name in ("Wants", "Requires", "BindsTo", "PartOf"):
        assert "larder-dataplane.service" not in " ".join(managing.get(name, [])), "each starts and restarts alone"


def test_a_data_plane_that_crashes_is_always_started_again(units: Path) -> None:
    serving = settings_of(units / "larder-dataplane.service")
    assert (serving["Restart"], serving["StartLimitIntervalSec"]) == (["on-failure"], ["0"])


def test_the_api_requires_a_token_from_the_start(manager: str, units: Path, tmp_path: Path) -> None:
    assert requires_token(load(environ=environment_of(units / "larder.service")))
    assert "larder login --setup" in install(tmp_path, manager).output


@pytest.mark.parametrize(
    ("program", "arguments", "wrong"),
    [
        ("app", ["up"], {"LARDER_HTTP_PORT": "abc"}),
        ("app", ["up"], {"LARDER_DATABASE_URL": "foo"}),
        ("app", ["up"], {"LARDER_HTTP_PORT": "0", "LARDER_DATAPLANE__TICK_S": "-1"}),
        ("app", ["holder"], {"LARDER_HTTP_PORT": "abc"}),
        ("dataplane", [], {"LARDER_HTTP_PORT": "abc"}),
    ],
)
def test_a_wrong_setting_ends_a_service_for_good(
    program: str, arguments: list[str], wrong: dict[str, str], socket_dir: Path, tmp_path: Path
) -> None:
    assert install(tmp_path, "--system").exit_code == 0
    done = forked.run(program, *arguments, env={**os.environ, "LARDER_STATE_DIR": str(socket_dir), **wrong})
    (unit,) = (
        unit
        for unit in map(settings_of, sorted((tmp_path / "etc/systemd/system").iterdir()))
        if unit["ExecStart"] == [" ".join(["/bin/true", *(arguments or [program])])]
    )
    assert unit["RestartPreventExitStatus"] == [str(done.returncode)], done.stderr


def test_the_holder_starts_with_the_data_plane_and_outlives_it(units: Path) -> None:
    serving, holding = (settings_of(units / name) for name in ("larder-dataplane.service", "larder-holder.service"))
    for name in ("Wants", "After"):
        assert "larder-holder.service" in serving[name][0].split()
    for name in ("Requires", "BindsTo", "PartOf", "StopWhenUnneeded", "KillMode"):
        assert name not in serving
        assert name not in holding
    assert load_data_plane(environ=environment_of(units / "larder-dataplane.service")).table.external_holder
    assert holding["ExecStart"] == ["/bin/true holder"]
    assert (holding["Restart"], holding["StartLimitIntervalSec"]) == (["always"], ["0"])
    assert int(holding["LimitNOFILE"][0]) >= int(serving["LimitNOFILE"][0])


def test_the_services_see_gpus_and_the_names_in_shared_memory(units: Path) -> None:
    serving = settings_of(units / "larder-dataplane.service")
    for hides_gpus in ("PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock"):
        assert hides_gpus not in serving
    for unit in (serving, settings_of(units / "larder-holder.service")):
        assert "DynamicUser" not in unit
        assert "PrivateIPC" not in unit
        assert unit.get("RemoveIPC", ["no"]) == ["no"]


def test_a_second_install_changes_nothing(manager: str, units: Path, tmp_path: Path) -> None:
    before = {path: path.stat() for path in tmp_path.rglob("*")}
    result = install(tmp_path, manager)
    assert result.exit_code == 0
    assert "written" not in result.output
    assert {path: path.stat().st_ino for path in before} == {path: stat.st_ino for path, stat in before.items()}


def test_changed_units_are_kept_without_force(manager: str, units: Path, tmp_path: Path) -> None:
    changed = units / "larder.service"
    changed.write_text("mine", encoding="utf-8")
    (units / "larder-dataplane.service").unlink()
    result = install(tmp_path, manager)
    assert result.exit_code == 1
    assert f"{changed}: changed since it was written; --force overwrites it" in result.output
    assert changed.read_text(encoding="utf-8") == "mine"
    assert not (units / "larder-dataplane.service").exists(), "nothing is written beside a refusal"
    assert install(tmp_path, manager, "--force").exit_code == 0
    assert "ExecStart" in changed.read_text(encoding="utf-8")


def test_the_environment_file_is_private_and_never_overwritten(manager: str, units: Path, tmp_path: Path) -> None:
    (environment,) = tmp_path.rglob("larder.env")
    assert environment.stat().st_mode & 0o777 == 0o600
    environment.write_text("LARDER_HTTP_PORT=8471\n", encoding="utf-8")
    assert install(tmp_path, manager, "--force").exit_code == 0
    assert environment.read_text(encoding="utf-8") == "LARDER_HTTP_PORT=8471\n"


def test_print_writes_nothing(manager: str, tmp_path: Path) -> None:
    result = install(tmp_path, manager, "--print")
    assert result.exit_code == 0
    assert result.output.count("ExecStart=/bin/true ") == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("executable", ["larder", "/opt/my larder/bin/larder", "/opt/100%/larder"])
def test_an_executable_that_a_unit_cannot_name_is_refused(tmp_path: Path, executable: str) -> None:
    result = install(tmp_path, "--executable", executable)
    assert result.exit_code == 1
    assert "expected an absolute path without spaces" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("executable", ["/home/me/.venv/bin/larder", "/tmp/venv/bin/larder"])
def test_an_executable_that_the_units_hide_is_refused_for_the_machine(tmp_path: Path, executable: str) -> None:
    result = install(tmp_path, "--executable", executable)
    assert result.exit_code == 1
    assert "--user" in result.output


def service(unit: Path, overrides: dict[str, str], log: Path) -> AbstractContextManager[forked.AnyProcess]:
    """Run the unit's command as its service does, with `overrides` as its EnvironmentFile."""
    (command,) = settings_of(unit)["ExecStart"]
    arguments = command.replace("/bin/true", "larder").split()
    return running(log, *arguments, environ=environment_of(unit) | overrides, group=True)


def test_the_cache_outlives_a_restart_or_a_kill_of_either_service(
    tmp_path: Path, socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert install(tmp_path, "--system").exit_code == 0
    units = tmp_path / "etc/systemd/system"
    socket = socket_dir / "engine.sock"
    overrides = {
        "LARDER_STATE_DIR": str(socket_dir),
        "LARDER_ENGINE_SOCKET": str(socket),
        "LARDER_HTTP_PORT": str(free_port()),
        "LARDER_LMCACHE_PORT": "0",
        "LARDER_POOL_BYTES": "16MiB",
        "LARDER_DATAPLANE__SEGMENT_BYTES": "2MiB",
        "LARDER_APP__AUTH": "auto",
        "LARDER_DATAPLANE__KEEP_MEMORY_S": "240",  # until the next one is started, also on a busy machine
        "LARDER_APP__SHUTDOWN_GRACE_S": "20",
    }
    holding, serving, managing = (
        units / name for name in ("larder-holder.service", "larder-dataplane.service", "larder.service")
    )
    log = socket_dir / "log"
    keys, space = chain(list(range(512))), Space(model="m")

    def node() -> Any:
        return node_in_sync(f"http://127.0.0.1:{overrides['LARDER_HTTP_PORT']}")

    def read() -> None:
        with attach(str(socket), [space], timeout_s=60) as client:
            wait_for(lambda: client.lookup(keys) == 2, "the data plane serves both blocks")
            with client.acquire(keys) as lease:
                assert [bytes(lease.view(i)) for i in range(len(lease))] == [b"\7" * 4096, b"\10" * 4096]

    with ExitStack() as holders, ExitStack() as manager:
        first = holders.enter_context(service(holding, overrides, log))
        manager.enter_context(service(managing, overrides, log))
        with service(serving, overrides, log):
            wait_for(node, "the management plane has the node in sync")
            with attach(str(socket), [space], timeout_s=60) as client, client.reserve(keys, 4096) as room:
                for i in room.writable:
                    room.array(i)[:] = 7 + i
                assert room.commit().blocks == 2
        memory = describe(socket_dir)
        assert memory is not None
        assert (memory.pid, memory.blocks, memory.connected) == (first.pid, 2, False)
        with service(serving, overrides, log) as killed:
            read()
            os.killpg(killed.pid, signal.SIGKILL)
            killed.wait(60)
        with service(serving, overrides, log):
            read()
            holders.close()  # and at once the data plane, which waits for the next holder
            holder = holders.enter_context(service(holding, overrides, log))
        with service(serving, overrides, log):
            read()
            manager.close()
            with attach(str(socket), [space], timeout_s=60) as client:
                assert client.lookup(keys) == 2
            manager.enter_context(service(managing, overrides, log))
            wait_for(node, "the new management plane has the node in sync")
        monkeypatch.setenv("LARDER_STATE_DIR", str(socket_dir))
        manager.close()
        released = CliRunner().invoke(larder, ["down"])
        assert "released 2 blocks" in released.output, released.output
        assert holder.poll() is None
