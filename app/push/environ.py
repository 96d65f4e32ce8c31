"""What a data plane inherits: its own settings, and of everything else nothing that is secret. It needs no database, no
token and no password, and its environment can be read by whoever can read its memory."""

import re
from collections.abc import Mapping

from dataplane.protocol.settings import CONFIG_VARIABLE, PREFIX, TEST_VARIABLES, Common, to_environ

_OWN = f"{PREFIX}DATAPLANE__"
_NOT_ITS = frozenset({f"{PREFIX}DATABASE_URL"})
_SECRET = re.compile(
    r"PASS(WORD|WD|PHRASE)?(_|$)|SECRET|TOKEN|CREDENTIAL|(API|ACCESS|PRIVATE)_?KEY", re.IGNORECASE
)
_POSTGRES = "PG"


def environ_of(environ: Mapping[str, str], common: Common | None = None) -> dict[str, str]:
    """The environment of a data plane: of ours, and the shared settings in force as far as they are its."""
    inherited = {name: value for name, value in environ.items() if _is_its(name)}
    shared = {} if common is None else to_environ(common)
    return {**inherited, **{name: value for name, value in shared.items() if name not in _NOT_ITS}}


def _is_its(name: str) -> bool:
    if name.startswith(PREFIX):
        section = name.removeprefix(PREFIX).partition("__")
        shared = not section[1] and name.removeprefix(PREFIX).lower() in Common.__struct_fields__
        its = shared or name.startswith((_OWN, *TEST_VARIABLES)) or name == CONFIG_VARIABLE
        return its and name not in _NOT_ITS
    return not name.startswith(_POSTGRES) and _SECRET.search(name) is None
