"""What every `larder up` makes at its start, made once: the fork server imports this before it forks.

Registering the routes alone is a third of the CPU time of a start.
"""

import asyncpg  # noqa: F401 (imported ahead of its use)
from sqlalchemy.dialects.postgresql import asyncpg as _postgres  # noqa: F401
from sqlalchemy.dialects.sqlite import aiosqlite as _sqlite  # noqa: F401
from sqlalchemy.orm import configure_mappers

from app import asgi
from app.asgi import Routes
from app.settings import AppSettings
from app.store.base import migrate

configure_mappers()
migrate.head()
_ready = {Routes.key_of(AppSettings()): Routes(AppSettings())}


def _routes(app: AppSettings) -> Routes:
    """Return the routes that are ready if these are the settings, else new ones."""
    return _ready.pop(Routes.key_of(app), None) or Routes(app)


asgi.Routes = _routes  # type: ignore[misc, assignment]  # only `create_app` calls it
