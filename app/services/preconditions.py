"""What a caller expects of a record before it is changed: `If-Match` and `If-None-Match`, RFC 9110 §13.

Two people who edit one record must not overwrite each other unseen: a change of a record that is there has to name the
state it was made from, or say that it does not matter (`*`).
"""

from dataclasses import dataclass

from app.errors import PreconditionFailed, PreconditionRequired

MAX_TAGS = 32


@dataclass(frozen=True)
class Expected:
    """`tags` are the states that are accepted; None: nothing was said about them."""

    tags: frozenset[str] | None = None
    exists: bool = False
    """`If-Match: *`: any state, as long as there is one."""
    absent: bool = False
    """`If-None-Match: *`: only a record that is not there."""
    waived: bool = False
    """Nobody asked over HTTP: any state will do."""

    def check(self, what: str, etag: str | None) -> None:
        """`etag` is the record's now, None when there is none. Raises PreconditionFailed, PreconditionRequired."""
        if self.waived:
            return
        if etag is None:
            if self.exists or self.tags is not None:
                raise PreconditionFailed(f"If-Match: there is no {what}")
            return
        if self.absent:
            raise PreconditionFailed(f"If-None-Match: there is a {what} already; its ETag is {etag}")
        if self.exists:
            return
        if self.tags is None:
            raise PreconditionRequired(
                f"there is a {what}: expected If-Match with its ETag, {etag}, or * for any state of it"
            )
        if etag not in self.tags:
            raise PreconditionFailed(
                f"If-Match: the {what} was changed meanwhile: its ETag is {etag}, got {', '.join(sorted(self.tags))}"
            )


ANY = Expected(waived=True)


def etag(number: int) -> str:
    """Of the state that a generation or revision number names."""
    return f'"{number}"'
