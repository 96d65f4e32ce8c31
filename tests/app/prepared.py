"""What every `larder up` makes at its start, made once: the fork server imports this before it forks.

Registering the routes alone is a third of the CPU time of a start.
"""

import asyncpg  # noqa: F401 (imported ahead of its use)
from sqlalchemy.dialects.postgresql import asyncpg as _postgres  # noqa: F401
from sqlalchemy.dialects.sqlite import aiosqlite as _sqlite  # noqa: F401
from sqlalchemy.orm import configure_mappers

from app.settings import AppSettings
from app.store.base import migrate
from tests.app.reused_routes import routed, use_again

configure_mappers()
migrate.head()
use_again(AppSettings(), routed(AppSettings()))
