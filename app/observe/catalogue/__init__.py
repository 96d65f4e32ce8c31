"""Events of the management plane: one typed struct for each name, published with `EventBus.publish`.

The event bus adds when an event happened, on which node, and who caused it. Names are `noun.past_participle`; records
and tokens have `created`, `changed` and `deleted`. An operator's request to a node ends in `requested`, because the
node may refuse it. Fields that name something are `tenant`, `pin`, `policy`, `node`, `generation`, `reason` and so on,
as in events of data planes (`dataplane.protocol.events`).
"""

from itertools import chain
from typing import get_args

from app.observe.catalogue import access, alerts, fleet, records, service
from app.observe.catalogue.plane_event import PlaneEvent
from dataplane.protocol.event import EventStruct, name_of
from dataplane.protocol.events import Event
from dataplane.protocol.stats.node import NodeStats

__all__ = ["CATALOGUE", "DROPPED_FIRST", "NOT_STORED", "OF_DATA_PLANES", "OF_MANAGEMENT_PLANE", "PlaneEvent", "name_of"]

OF_MANAGEMENT_PLANE: tuple[type[PlaneEvent], ...] = (
    *chain(*records.RECORD_EVENTS.values()),
    *(
        event_type
        for module in (records, access, fleet, alerts, service)
        for event_type in vars(module).values()
        if isinstance(event_type, type)
        and issubclass(event_type, PlaneEvent)
        and event_type.__module__ == module.__name__
    ),
)
OF_DATA_PLANES: tuple[type[EventStruct], ...] = tuple(
    event_type for event_type in get_args(Event) if event_type is not NodeStats
)
CATALOGUE: dict[str, type[EventStruct]] = {
    name_of(event_type): event_type for event_type in (*OF_MANAGEMENT_PLANE, *OF_DATA_PLANES)
}
"""All events that the event bus of a management plane delivers, by name."""
NOT_STORED = frozenset(name for name, event_type in CATALOGUE.items() if not event_type.stored)
"""Names of events of normal operation, which are not stored."""
DROPPED_FIRST = tuple(
    frozenset(name for name, event_type in CATALOGUE.items() if event_type.per_block and event_type.stored is stored)
    for stored in (False, True)
)
"""Names of events that a full queue drops first: block traffic of normal operation, then refusals."""
