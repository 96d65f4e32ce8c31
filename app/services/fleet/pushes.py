"""The history of pushes."""

import msgspec

from app.schemas.fleet.pushes import PushAnswer, PushFault, PushList
from app.services.base.fields import answer
from app.store.base.database import Database
from app.store.fleet import pushes
from app.store.fleet.pushes import PushRow


class Pushes:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, kind: str | None, node: str | None, state: str | None, limit: int) -> PushList:
        """Return the newest pushes first, filtered."""
        async with self._database.read() as session:
            rows, total = await pushes.newest(session, kind=kind, node=node, state=state, limit=limit)
        return PushList([_answer(row) for row in rows], total)


def _answer(row: PushRow) -> PushAnswer:
    return answer(PushAnswer, row, faults=msgspec.convert(row.faults, list[PushFault]))
