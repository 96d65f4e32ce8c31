"""`larder managers …`: show which management processes run, and which one leads."""

from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column
from app.cli.support.resources.options import Noun
from app.cli.support.resources.verbs import Resource, add_list


def _yes(value: bool) -> str:
    return "yes" if value else "no"


_COLUMNS = (
    Column("id", lambda m: m["id"]),
    Column("host", lambda m: m["host"], drop=1),
    Column("pid", lambda m: str(m["pid"]), drop=2, right=True),
    Column("url", lambda m: m["url"]),
    Column("pushes", lambda m: _yes(m["pushing"])),
    Column("alive", lambda m: _yes(m["alive"])),
    Column("", lambda m: "this one" if m["answering"] else "", drop=4),
    Column("seen", lambda m: show.ago(m["seen_at"]), drop=3),
)

managers = Noun("managers", help="Show the managers that share the database, and which of them pushes to nodes.")
add_list(managers, Resource("/api/v1/managers", "manager", _COLUMNS, "id"), "List the managers.")
