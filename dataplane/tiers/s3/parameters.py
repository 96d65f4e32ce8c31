"""Parameters of the tier `s3`."""

from typing import Annotated

import msgspec
from msgspec import Meta

from dataplane.protocol.tiers import MAX_DEADLINE_S, MAX_IN_FLIGHT_BYTES
from dataplane.tiers.references import Reference
from dataplane.tiers.registry import ParameterError


class S3Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the bucket is and how it is used."""

    url: Annotated[str, Meta(pattern=r"^(s3|gs|az)://[\w.-]+(/[^?#]*)?$", examples=["s3://bucket/prefix"])]
    """`s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`. The prefix may be missing."""
    endpoint: Annotated[str, Meta(pattern=r"^(https?://[^/@?#\s]+/?)?$", examples=["https://s3.example.org"])] = ""
    """Address of the service, such as `https://minio.example:9000`; empty for the cloud's own. Redirections to other
    hosts are not followed, unless a proxy of the environment serves the endpoint."""
    region: str = ""
    """Region of the bucket; empty for the default of the library. For `s3://` alone."""
    virtual_hosted: bool = False
    """Whether the bucket is part of the host's name, also in `endpoint`, instead of the path. For `s3://` alone."""
    credentials: dict[str, Reference] = {}
    """References (`env:NAME`, `file:/path`) by the names of obstore: `access_key_id`, `secret_access_key` and
    `session_token` for `s3://`, `service_account_key` for `gs://`, `account_name` and `account_key` for `az://`. Empty
    for the default chain of the library: variables of the environment, such as `AWS_ACCESS_KEY_ID`, then the identity
    of the machine. The data plane of `larder up` has only the variables that `dataplane.tier_secrets` allows."""
    storage_class: str = ""
    """Storage class of new objects, such as `ONEZONE_IA`; empty for the bucket's default. For `s3://` alone."""
    ca_file: str = ""
    """Certificates of the authorities that are trusted; empty for the system's."""
    max_in_flight_bytes: Annotated[int, Meta(ge=1, le=MAX_IN_FLIGHT_BYTES)] = 64 * 1024 * 1024
    """Most bytes of blocks that are under way in a call. A larger block is sent alone."""
    range_bytes: Annotated[int, Meta(ge=4096, le=MAX_IN_FLIGHT_BYTES)] = 8 * 1024 * 1024
    """Most bytes that a request reads. A larger block is read by several requests at once."""
    retries: Annotated[int, Meta(ge=0, le=100)] = 3
    """Times that a request is repeated after an error of the server or the network, until the deadline."""
    connect_timeout_s: Annotated[float, Meta(gt=0, le=MAX_DEADLINE_S)] = 2.0
    """Time for a connection to be established, if the deadline of the call is not sooner."""

    def __post_init__(self) -> None:
        """Raise ParameterError if the parameters contradict each other."""
        for field in ("region", "virtual_hosted", "storage_class"):
            if getattr(self, field) and not self.url.startswith("s3:"):
                raise ParameterError(field, "expected none, because url is not s3://")
