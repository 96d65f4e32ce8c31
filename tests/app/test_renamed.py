"""Names that were changed: whoever uses the old one is told the new one."""

import pytest
from click.testing import CliRunner

from app.cli import larder
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
