"""An event bus of which only subscribers read, if events are not stored."""

from collections.abc import Callable

from app.observe.events import EventBus, LarderEvent


def event_bus(keep: Callable[[LarderEvent], None] = lambda event: None) -> EventBus:
    return EventBus(keep, lambda event: None)
