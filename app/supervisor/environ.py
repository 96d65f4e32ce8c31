"""Environment of a data plane: its own settings, plus the variables that any program needs to run.

The data plane needs no database, token or password, and every process that can read its memory can read its
environment.
"""

import re
from collections.abc import Mapping

from dataplane.base.settings import CONFIG_VARIABLE, PREFIX, TEST_VARIABLES, Common, to_environ

_OWN = f"{PREFIX}DATAPLANE__"
_NOT_ITS = frozenset({f"{PREFIX}DATABASE_URL"})
_INHERITED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TERM|NO_COLOR|FORCE_COLOR|COLORTERM|LANG|LANGUAGE|LC_\w+|TZ|TZDIR|TMPDIR|TEMP|TMP|XDG_\w+|"
    r"OMP_NUM_THREADS|OPENBLAS_NUM_THREADS|SSL_CERT_(FILE|DIR)|"
    r"VIRTUAL_ENV|PYTHON\w*|LD_LIBRARY_PATH|LD_PRELOAD|MALLOC_\w+|GLIBC_TUNABLES|COVERAGE_\w+|"
    r"CUDA\w*|NVIDIA\w*|OTEL_\w+",
    re.ASCII,
)
"""Variables that Python, the C library, CUDA and tracing read. All others are not inherited, and may be secrets."""
_SECRET = re.compile(
    r"PASS(WORD|WD|PHRASE)?(_|$)|SECRET|TOKEN|CREDENTIAL|HEADERS|(API|ACCESS|PRIVATE)_?KEY", re.IGNORECASE
)
_LOGIN = re.compile(r"://[^/?#\s]*@")
"""A URL with credentials."""


def environ_of(environ: Mapping[str, str], common: Common | None = None) -> dict[str, str]:
    """Return the environment of a data plane: inherited variables, and the shared settings that concern it."""
    inherited = {name: value for name, value in environ.items() if _is_its(name, value)}
    shared = {} if common is None else to_environ(common)
    return {**inherited, **{name: value for name, value in shared.items() if name not in _NOT_ITS}}


def _is_its(name: str, value: str) -> bool:
    if name.startswith(PREFIX):
        section = name.removeprefix(PREFIX).partition("__")
        shared = not section[1] and name.removeprefix(PREFIX).lower() in Common.__struct_fields__
        its = shared or name.startswith((_OWN, *TEST_VARIABLES)) or name == CONFIG_VARIABLE
        return its and name not in _NOT_ITS
    known = _INHERITED.fullmatch(name) is not None and _SECRET.search(name) is None
    return known and _LOGIN.search(value) is None
