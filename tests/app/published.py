"""The description of the API as it was published. To build it again takes seconds of CPU time in each process.

`tests/app/cli/test_up.py` compares it with the one that the code makes now.
"""

import json
from typing import Any

from tests.golden_file import FOLDER


def description() -> dict[str, Any]:
    """Return the OpenAPI document."""
    return dict(json.loads((FOLDER / "openapi.json").read_text(encoding="utf-8")))
