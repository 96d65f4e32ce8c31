"""`larder doctor` on this machine."""

import io
import json
import os
import subprocess
from contextlib import redirect_stdout
from subprocess import CompletedProcess
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner

from app.cli.commands.machine import doctor as command
from app.cli.support.machine import checkup
from dataplane.__main__ import _print_config
from dataplane.base.settings import SettingsError
from dataplane.settings import load


def examined() -> tuple[int, dict[str, Any]]:
    """Exit code, and each check by name. The data plane prints its settings in this process."""
    with patch.object(subprocess, "run", _run), patch.object(checkup, "CLOCK_WAIT_S", 0.0):
        return examined_with_processes()


def examined_with_processes() -> tuple[int, dict[str, Any]]:
    """The same, with the subprocess of each check."""
    result = CliRunner().invoke(command.doctor, ["--json"], catch_exceptions=False)
    output = json.loads(result.output)
    assert output["ok"] is (result.exit_code == 0)
    return result.exit_code, {each["name"]: each for each in output["checks"]}


def _run(arguments: list[str], **options: Any) -> CompletedProcess[str]:
    """Print the settings of the data plane; run any other command."""
    if arguments[-1] != "--print-config":
        return _real_run(arguments, **options)
    content = io.BytesIO()
    printed = io.TextIOWrapper(content)
    try:
        with redirect_stdout(printed):
            _print_config(load(environ=os.environ))
    except SettingsError as error:
        return CompletedProcess(arguments, 2, "", f"larder data plane: {error}\n")
    return CompletedProcess(arguments, 0, content.getvalue().decode(), "")


_real_run = subprocess.run
