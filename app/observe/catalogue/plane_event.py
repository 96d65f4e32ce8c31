"""Base class of the events of the management plane."""

from dataplane.protocol.event import EventStruct


class PlaneEvent(EventStruct):
    """An event of the management plane."""
