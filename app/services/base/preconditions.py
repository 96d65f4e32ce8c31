"""Preconditions of a change: `If-Match` and `If-None-Match`, RFC 9110 §13.

Two people who edit one record must not overwrite each other's changes unnoticed. So a change of an existing record must
name the state that it was made from, or state that it does not matter (`*`).
"""

from dataclasses import dataclass

from app.errors import PreconditionFailed, PreconditionRequired

MAX_TAGS = 32


@dataclass(frozen=True)
class Precondition:
    """`tags` are the accepted states; None: the caller named none."""

    tags: frozenset[str] | None = None
    exists: bool = False
    """`If-Match: *`: any state, provided that the record exists."""
    absent: bool = False
    """`If-None-Match: *`: the record must not exist."""
    waived: bool = False
    """The call did not come over HTTP: any state is accepted."""

    def check(self, subject: str, etag: str | None) -> None:
        """Check against `etag`, the record's current one, or None if it does not exist. Raises PreconditionFailed,
        PreconditionRequired."""
        if self.waived:
            return
        if etag is None:
            if self.exists or self.tags is not None:
                raise PreconditionFailed(f"If-Match: there is no {subject}")
            return
        if self.absent:
            raise PreconditionFailed(f"If-None-Match: there is a {subject} already; its ETag is {etag}")
        if self.exists:
            return
        if self.tags is None:
            raise PreconditionRequired(
                f"there is a {subject}: expected If-Match with its ETag, {etag}, or * for any state of it"
            )
        if etag not in self.tags:
            raise PreconditionFailed(
                f"If-Match: the {subject} was changed meanwhile: its ETag is {etag}, got {', '.join(sorted(self.tags))}"
            )


ANY = Precondition(waived=True)


def state_of(tag: str) -> Precondition:
    """Return the precondition that a record is in the state of this ETag."""
    return Precondition(tags=frozenset({tag}))


def etag(number: int) -> str:
    """Return the ETag of a generation or revision number."""
    return f'"{number}"'
