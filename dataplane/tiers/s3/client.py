"""Sends requests to object storage, each with a deadline. A separate process makes them: see `worker`.

The first request starts the process. If the process has ended, the next request starts it again.
"""

import threading
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from dataplane.protocol.stored_blocks import Buffer
from dataplane.tiers.references import read_certificates, resolve
from dataplane.tiers.s3.messages import (
    DeleteObjects,
    GetObject,
    ListObjects,
    OpenBucket,
    PutObject,
    RequestFault,
    StoreRequest,
    StoreRequestFailed,
)
from dataplane.tiers.s3.parameters import S3Parameters
from dataplane.tiers.s3.worker_process import PendingRequest, WorkerProcess
from dataplane.tiers.tier import TierError

_MEMORY_BYTES, _CALLS = 1 << 30, 16
"""The process may write to this many bytes of memory, plus this many times `max_in_flight_bytes`, because several calls
run at once and a value may exist twice."""


_LOCAL_SOURCES = ("localhost", "127.0.0.1", "169.254.169.254", "169.254.170.2", "169.254.170.23", "fd00:ec2::23")
_SOURCES_OF_CREDENTIALS = {
    "s3": (*_LOCAL_SOURCES, "amazonaws.com", "amazonaws.com.cn"),
    "gs": (*_LOCAL_SOURCES, "googleapis.com", "metadata.google.internal", "metadata"),
    "az": (*_LOCAL_SOURCES, "microsoftonline.com", "microsoftonline.us", "chinacloudapi.cn"),
}


class ObjectClient:
    """A bucket in object storage. Thread-safe."""

    def __init__(self, parameters: S3Parameters) -> None:
        self._parameters = parameters
        self.address = f"{parameters.url} at {parameters.endpoint}" if parameters.endpoint else parameters.url
        """URL and endpoint, as messages name them."""
        self._memory_bytes = _MEMORY_BYTES + _CALLS * parameters.max_in_flight_bytes
        self._lock = threading.Lock()
        self._process: WorkerProcess | None = None
        self._denied = False
        """Whether the credentials must be read again."""
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Number of the process that makes the requests; None before the first one."""
        process = self._process
        return None if process is None else process.pid

    def get(self, path: str, size: int, range_bytes: int) -> PendingRequest:
        """Read the first `size` bytes of an object, or fewer if it is shorter, in ranges of at most `range_bytes`.

        All bytes are of the same version of the object.
        """
        return self._call(lambda number, start: GetObject(number, path, start, size, range_bytes), size)

    def put(self, path: str, pieces: Sequence[Buffer]) -> PendingRequest:
        """Store an object that consists of the pieces."""
        storage_class = self._parameters.storage_class
        size = sum(memoryview(piece).nbytes for piece in pieces)
        return self._call(lambda number, start: PutObject(number, path, start, size, storage_class), size, pieces)

    def delete(self, paths: list[str]) -> PendingRequest:
        """Delete objects. It is not an error if an object does not exist."""
        return self._call(lambda number, start: DeleteObjects(number, paths))

    def list_page(self, prefix: str, after: str, size: int) -> PendingRequest:
        """List at most `size` objects below a prefix, from the first path after `after`. The last page is empty."""
        return self._call(lambda number, start: ListObjects(number, prefix, after, size))

    def fault(self, error: StoreRequestFailed) -> RequestFault:
        """Return the meaning of an error. If credentials are at fault, the next request reads them again.

        Raises TierError if no block can be served.
        """
        if error.fault.denied:
            self._denied = True
        if error.fault.sentence:
            raise TierError(f"{self.address}: {error.fault.sentence}") from None
        return error.fault

    def close(self) -> None:
        """End the process. Requests under way fail. May be called twice."""
        self._closed = True
        process = self._process
        if process is not None:
            process.close()
        with self._lock:  # a call may have started another process just now
            process = self._process
        if process is not None:
            process.close()

    def _call(
        self, make: Callable[[int, int], StoreRequest], size: int = 0, value: Sequence[Buffer] = ()
    ) -> PendingRequest:
        process = self._started()
        try:
            return process.request(make, size, value)
        except OSError as error:
            raise TierError(f"{self.address}: no memory for requests: {error.strerror}") from None

    def _started(self) -> WorkerProcess:
        """Return the process. If necessary, start it, and read the credentials. Raises TierError."""
        with self._lock:
            if self._closed:
                raise TierError(f"{self.address}: the tier is closed")
            process = self._process
            if process is not None and not process.ended and not self._denied:
                return process
            message = self._open_message()
            if process is None or process.ended:
                try:
                    process = self._process = WorkerProcess(self._memory_bytes, self._parameters.max_in_flight_bytes)
                except OSError as error:
                    raise TierError(
                        f"{self.address}: the process that makes the requests cannot be started: {error.strerror}"
                    ) from None
            process.open(message)
            self._denied = False
            return process

    def _open_message(self) -> OpenBucket:
        parameters = self._parameters
        config = {name: resolve(f"credentials.{name}", reference) for name, reference in parameters.credentials.items()}
        if parameters.endpoint:
            config["base_url" if parameters.url.startswith("gs:") else "endpoint"] = parameters.endpoint
        if parameters.region:
            config["region"] = parameters.region
        if parameters.virtual_hosted:
            config["virtual_hosted_style_request"] = "true"
        certificate = read_certificates("ca_file", parameters.ca_file) if parameters.ca_file else None
        return OpenBucket(
            parameters.url,
            config,
            parameters.endpoint.startswith("http:"),
            parameters.connect_timeout_s,
            parameters.retries,
            certificate,
            _only_hosts(parameters),
        )


def _only_hosts(parameters: S3Parameters) -> str:
    """Return the hosts that requests may go to: that of the endpoint, and those that the library gets credentials from.
    Empty for a cloud's own endpoint, and if the environment names a proxy for the endpoint."""
    url = urlsplit(parameters.endpoint)
    if not url.hostname or (url.scheme in getproxies() and not proxy_bypass(url.hostname)):
        return ""
    scheme = parameters.url.partition(":")[0]
    credential_hosts = _SOURCES_OF_CREDENTIALS[scheme] if scheme == "gs" or not parameters.credentials else ()
    return ",".join((url.hostname, *credential_hosts))
