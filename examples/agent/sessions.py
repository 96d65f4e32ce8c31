"""The session of an agent: the fields that its requests carry, and what Larder does with its blocks between them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Self
from urllib.parse import quote

import httpx

_log = logging.getLogger(__name__)


class Session:
    """A conversation that requests name; at the end of the `with` block, Larder may evict its blocks.

    An agent needs no answer of Larder: failures are logged, and the engine computes what is not cached.
    """

    def __init__(self, larder: httpx.Client, name: str, tenant: str) -> None:
        """`larder`: client of Larder's API, with a token of the role operator for the tenant. `name`: 1 to 64 of
        `A-Z a-z 0-9 . _ -`."""
        self._larder = larder
        self._name = name
        self._tenant = tenant

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of each request to the engine; the package `openai` sends them as `extra_body`."""
        return {"cache_salt": self._tenant, "kv_transfer_params": {"larder.session": self._name}}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._act("release")

    @contextmanager
    def tool_call(self, seconds: float = 120.0) -> Iterator[None]:
        """Retain the blocks while a tool runs, for at most `seconds`; then load those that only tiers hold."""
        self._act("retain", seconds=seconds)
        try:
            yield
        finally:
            self._act("prefetch")

    def _act(self, action: Literal["release", "retain", "prefetch"], **fields: float) -> None:
        path = f"/api/v1/sessions/{quote(self._name, safe='')}:{action}"
        try:
            self._larder.post(path, json={"tenant": self._tenant, **fields}).raise_for_status()
        except httpx.HTTPError as error:
            _log.warning("session %s: %s failed: %s", self._name, action, error)
