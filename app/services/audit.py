"""The journal of changes."""

from app.schemas.audit import AuditAnswer, AuditList
from app.store import audit
from app.store.database import Database


class Audit:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, limit: int, offset: int) -> AuditList:
        """Newest first."""
        async with self._database.read() as session:
            rows, total = await audit.newest(session, limit, offset)
        answers = [
            AuditAnswer(**{name: getattr(row, name) for name in AuditAnswer.__struct_fields__})
            for row in rows
        ]
        return AuditList(answers, total)
