"""Environment of a data plane: its own settings, plus the variables that any program needs to run.

The data plane needs no database, token or password except the collector's credentials and the secrets of tiers, and
every process that can read its memory can read its environment.
"""

import re
from collections.abc import Mapping, Sequence

from dataplane.base import allowed_secrets
from dataplane.base.redaction import redacted
from dataplane.base.settings import (
    CONFIG_VARIABLE,
    PREFIX,
    TEST_VARIABLES,
    Common,
    SettingsError,
    read_list,
    to_environ,
)

_OWN = f"{PREFIX}DATAPLANE__"
_NOT_OF_DATA_PLANE = frozenset({f"{PREFIX}DATABASE_URL"})
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
_COLLECTOR_HEADERS = frozenset({"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"})
"""The collector's credentials, without which it would accept the spans of one plane only."""


def environ_of(environ: Mapping[str, str], common: Common | None = None) -> dict[str, str]:
    """Return the environment of a data plane: inherited variables, those that records of tiers may name, and the shared
    settings that concern it."""
    allowed = _tier_secrets(environ)
    inherited = {
        name: value
        for name, value in environ.items()
        if _concerns_data_plane(name, value) or _is_of_tiers(name, allowed)
    }
    shared = {} if common is None else to_environ(common)
    return {**inherited, **{name: value for name, value in shared.items() if name not in _NOT_OF_DATA_PLANE}}


def _tier_secrets(environ: Mapping[str, str]) -> Sequence[str]:
    """Return the setting `dataplane.tier_secrets`. The data plane reports it if it cannot be read."""
    try:
        allowed = read_list("dataplane", "tier_secrets", environ)
    except SettingsError:
        return ()
    return allowed_secrets.DEFAULT if allowed is None else allowed


def _is_of_tiers(name: str, allowed: Sequence[str]) -> bool:
    return not name.startswith(PREFIX) and allowed_secrets.covers_variable(allowed, name)


def _concerns_data_plane(name: str, value: str) -> bool:
    if name.startswith(PREFIX):
        section = name.removeprefix(PREFIX).partition("__")
        shared = not section[1] and name.removeprefix(PREFIX).lower() in Common.__struct_fields__
        is_own = shared or name.startswith((_OWN, *TEST_VARIABLES)) or name == CONFIG_VARIABLE
        return is_own and name not in _NOT_OF_DATA_PLANE
    is_inherited = _INHERITED.fullmatch(name) is not None and (
        _SECRET.search(name) is None or name in _COLLECTOR_HEADERS
    )
    return is_inherited and redacted(value) == value
