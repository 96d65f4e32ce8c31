"""The journal of changes."""

from app.schemas.audit import AuditAnswer, AuditList
from app.store import audit
from app.store.database import Database
from app.store.listing import Wanted


class Audit:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, wanted: Wanted) -> AuditList:
        """Newest first. Raises Invalid."""
        async with self._database.read() as session:
            page = await audit.page(session, wanted)
        answers = [
            AuditAnswer(**{name: getattr(row, name) for name in AuditAnswer.__struct_fields__})
            for row in page.rows
        ]
        return AuditList(answers, page.total, page.next_cursor)
