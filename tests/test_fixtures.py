"""The fixtures that other tests stand on."""

import asyncio
import socket
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from tests import free_port as ports
from tests import require as requirement
from tests.golden_file import Golden


def test_a_missing_tool_skips_on_a_laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirement, "IN_CI", False)
    with pytest.raises(pytest.skip.Exception, match="no such tool"):
        requirement.require(None, "no such tool")


def test_a_missing_tool_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirement, "IN_CI", True)
    with pytest.raises(pytest.fail.Exception, match="no such tool"):
        requirement.require("", "no such tool")
    requirement.require("/usr/bin/tool", "is there")


def test_a_golden_file_fails_on_another_text_and_update_rewrites_it(tmp_path: Path) -> None:
    frozen, update = Golden(update=False, folder=tmp_path), Golden(update=True, folder=tmp_path)
    with pytest.raises(pytest.fail.Exception, match="does not exist"):
        frozen("metrics.txt", "a\n")
    update("metrics.txt", "a\n")
    frozen("metrics.txt", "a\n")
    with pytest.raises(pytest.fail.Exception, match=r"(?s)make golden.*-a\n\+b"):
        frozen("metrics.txt", "b\n")


def test_a_socket_can_be_bound_in_the_socket_folder(socket_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(socket_dir / "a-rather-long-name-of-an-engine-socket.sock"))


def test_a_port_is_given_once_in_a_round_and_never_one_that_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "LAST_GIVEN", tmp_path / "last")
    first, second = ports.free_port(), ports.free_port()
    assert ports.FIRST < first < second < ports.END
    with socket.create_server(("127.0.0.1", ports.free_port())) as taken:
        monkeypatch.setattr(ports, "FIRST", taken.getsockname()[1])
        monkeypatch.setattr(ports, "END", ports.FIRST + 2)
        assert [ports.free_port(), ports.free_port()] == [ports.FIRST + 1] * 2
        monkeypatch.setattr(ports, "END", ports.FIRST + 1)
        with pytest.raises(AssertionError, match="are taken"):
            ports.free_port()


@pytest.mark.parametrize("run", [1, 2])
def test_every_test_has_an_empty_database(postgres_url: str, run: int) -> None:
    async def tables() -> list[str]:
        engine = create_async_engine(postgres_url)
        async with engine.begin() as connection:
            found = await connection.run_sync(lambda sync: sa.inspect(sync).get_table_names())
            await connection.execute(sa.text("CREATE TABLE seen (run int)"))
        await engine.dispose()
        return found

    assert postgres_url.startswith("postgresql+asyncpg://")
    assert asyncio.run(tables()) == []
