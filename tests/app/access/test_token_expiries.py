"""The expiry of a token is published once, whichever managers run at that time."""

import time

import pytest

from app.services.access.token_expiries import LATE_S, TokenExpiries
from app.services.views.events import Events
from app.store.access.tokens import TokenRow
from app.store.base.database import Database
from tests.app.event_bus import event_bus

pytestmark = pytest.mark.anyio


def token(name: str, expires_at: float | None) -> TokenRow:
    return TokenRow(
        id=f"id-{name}", name=name, role="viewer", tenants=None, hash=name, created_by="local",
        created_at=1.0, expires_at=expires_at, last_used_from="",
    )  # fmt: skip


async def test_an_expiry_is_published_once_and_also_after_a_restart(database: Database) -> None:
    now = time.time()
    async with database.write() as session:
        session.add_all(
            [token("old", now - LATE_S - 9), token("gone", now - 60), token("soon", now + 60), token("ever", None)]
        )
    events = Events(database, lost=lambda: 0)
    bus = event_bus(events.offer)
    expiries = TokenExpiries(database, bus)
    for at in (now, now + 1, now + 61, now + 62):
        await expiries.publish(at)
    found = [(event.name, event.fields["token"], event.at) for event in bus.recent]
    assert found == [("token.expired", "gone", now - 60), ("token.expired", "soon", now + 60)]
    await events.flush()
    later = event_bus()
    await TokenExpiries(database, later).publish(now + 63)
    assert not later.recent, "the previous manager published them"
