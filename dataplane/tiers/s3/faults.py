"""The meaning of a failed request, for one block or for the whole tier."""

from typing import NamedTuple

from dataplane.tiers.tier import Outcome


class RequestFault(NamedTuple):
    """The meaning of a failure. `sentence` is set if no block can be served, `denied` if credentials are at fault."""

    outcome: Outcome
    sentence: str = ""
    denied: bool = False


class StoreRequestFailed(Exception):
    """A request failed."""

    def __init__(self, fault: RequestFault) -> None:
        super().__init__(fault.sentence)
        self.fault = fault
