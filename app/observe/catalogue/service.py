"""The management plane itself: managers, database, the embedded data plane, the file of `apply_file`."""

from app.observe.catalogue.plane_event import PlaneEvent


class ManagerPromoted(PlaneEvent, tag="manager.promoted"):
    """This manager became the leader."""

    manager: str
    host: str
    pid: int


class ManagerDemoted(PlaneEvent, tag="manager.demoted"):
    """This manager is no longer the leader."""

    severity = "warning"

    manager: str
    host: str
    pid: int
    reason: str


class ManagerRestartRequested(PlaneEvent, tag="manager.restart_requested"):
    """An operator asked this manager to restart itself and its data plane."""

    severity = "warning"

    manager: str
    fresh: bool
    """Whether the restart discards the cached blocks."""


class DatabaseLost(PlaneEvent, tag="database.lost"):
    """The database stopped answering or accepting changes."""

    severity = "error"

    reason: str


class DatabaseRecovered(PlaneEvent, tag="database.recovered"):
    """The database answers and accepts changes again."""

    away_s: float
    """Seconds for which it did not."""


class BackupRestored(PlaneEvent, tag="backup.restored"):
    """The database was replaced by a backup (`larder db restore`)."""

    severity = "warning"

    file: str
    from_revision: str
    """Revision of the schema in the backup."""
    revision: str
    """Revision of the schema now."""


class DataplaneStarted(PlaneEvent, tag="dataplane.started"):
    """The embedded data plane started."""

    pid: int


class DataplaneExited(PlaneEvent, tag="dataplane.exited"):
    """The embedded data plane exited."""

    severity = "error"

    code: int | None
    """Exit code; negative: number of the signal that killed it; null: unknown, because the process was adopted."""
    restart_in_s: float
    """Seconds until the data plane is started again."""


class DataplaneStopped(PlaneEvent, tag="dataplane.stopped"):
    """The management plane stops, and with it its embedded data plane."""


class ApplyFileApplied(PlaneEvent, tag="apply_file.applied"):
    """The file of `apply_file` was applied."""

    file: str
    created: int
    """Number of records that were created."""
    changed: int
    """Number of records that were changed."""
    deleted: int
    """Number of records that were deleted."""
    unchanged: int
    """Number of records that already matched the file."""


class ApplyFileRefused(PlaneEvent, tag="apply_file.refused"):
    """The file of `apply_file` is invalid; the records of the last valid one stay."""

    severity = "error"

    file: str
    reason: str
