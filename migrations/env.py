"""How alembic reaches the database: on the connection it was handed, or on the one the settings name.

One transaction around all missing migrations, on SQLite too: its DDL is transactional once the driver is set to BEGIN.
With one each, a process that starts at the same time would read its place between two of them and repeat the second.
"""

import asyncio

import sqlalchemy as sa
from alembic import context

from app.settings import load
from app.store.base.database import Database
from app.store.tables import metadata


def migrate(connection: sa.Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        transactional_ddl=True,
        render_as_batch=connection.dialect.name == "sqlite",
        compare_type=True,
        compare_server_default=True,
    )
    with context.begin_transaction():
        context.run_migrations()


async def connect_and_migrate() -> None:
    database = Database(load().common.database_url)
    async with database.engine.execution_options(larder_write=True).connect() as connection:
        await connection.run_sync(migrate)
        await connection.commit()
    await database.close()


handed = context.config.attributes.get("connection")
if handed is not None:
    migrate(handed)
else:
    asyncio.run(connect_and_migrate())
