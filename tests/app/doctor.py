"""`larder doctor` on this machine."""

import json
from typing import Any

from click.testing import CliRunner

from app.cli.commands.machine.doctor import doctor


def examined() -> tuple[int, dict[str, Any]]:
    """Exit code, and each check by name."""
    result = CliRunner().invoke(doctor, ["--json"], catch_exceptions=False)
    output = json.loads(result.output)
    assert output["ok"] is (result.exit_code == 0)
    return result.exit_code, {each["name"]: each for each in output["checks"]}
