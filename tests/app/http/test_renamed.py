"""Names that were changed: whoever uses the old one is told the new one."""

import pytest
from click.testing import CliRunner

from app.cli import larder
from app.settings import load
from dataplane.base.settings import SettingsError
from tests.app.plane import Plane


@pytest.mark.anyio
async def test_a_path_that_had_another_name_is_refused_with_the_new_one(plane: Plane) -> None:
    answer = await plane.http.get("/api/v1/replicas")
    assert answer.status_code == 404
    assert answer.json()["detail"] == "/api/v1/replicas is called /api/v1/managers now"


def test_a_command_that_had_another_name_is_refused_with_the_new_one() -> None:
    ran = CliRunner().invoke(larder, ["replicas"])
    assert ran.exit_code == 2
    assert "`larder replicas` is called `larder managers` now" in ran.output


def test_a_setting_that_is_gone_is_refused_with_what_to_do() -> None:
    with pytest.raises(SettingsError, match=r"^app\.connections_per_address is gone: delete it; the proxy"):
        load(environ={"LARDER_APP__CONNECTIONS_PER_ADDRESS": "5"})
