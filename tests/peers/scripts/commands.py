"""LMCache's command line, many times in one process: it starts slowly. Argument: a JSON list of argument lists."""

import contextlib
import io
import json
import sys
from typing import Any

from lmcache.cli.main import main

done: list[dict[str, Any]] = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["lmcache", *arguments]
    output = io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    done.append({"code": code, "said": output.getvalue()})
print(json.dumps(done))
