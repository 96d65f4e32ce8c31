"""The meaning of an error of obstore, for one block or for the whole tier.

The text of an error contains the server's response, which may repeat credentials. Only its code and a few known texts
are used.
"""

import re

from obstore.exceptions import InvalidPathError, UnknownConfigurationKeyError

from dataplane.protocol.stored_blocks import Outcome
from dataplane.tiers.s3.messages import NO_OTHER_HOST, RequestFault

_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_STATUS = re.compile(r"status code: (\d{3})\b")
_BEYOND_END = "416"
_KIND = re.compile(r"\bkind: (\w{1,32})")
_REFUSED = re.compile(r'^Encountered object with invalid path: .*?Path "(.{1,2000}?)"(?: contained|: Enc)', re.DOTALL)
_REASONS = {
    "Connection refused": "the connection is refused",
    "failed to lookup address": "the name of the host is not known",
    "InvalidCertificate": "the server's certificate is not trusted",
    "Network is unreachable": "the network is unreachable",
    "No route to host": "there is no route to the host",
}
_DENIED = frozenset(
    {
        "AccessDenied",
        "AccountProblem",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidSecurity",
        "InvalidToken",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
        "UnrecognizedClientException",
    }
)
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound", "InvalidBucketName"})
_OTHER_REGION = frozenset({"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"})
_FULL = frozenset({"QuotaExceeded", "QuotaExceededException", "XMinioStorageFull", "InsufficientStorage"})


def explain(error: Exception) -> RequestFault:
    """Return the meaning of an error of obstore."""
    text = str(error)
    code = _first(_CODE, text)
    status = _first(_STATUS, text)
    if code in _NO_BUCKET:
        return RequestFault(Outcome.FAILED, "the bucket does not exist")
    if code in _OTHER_REGION or "Received redirect without LOCATION" in text:
        return RequestFault(Outcome.FAILED, "the bucket is in another region: set region")
    if code in _DENIED or status in {"401", "403"}:
        return RequestFault(Outcome.FAILED, f"access is denied ({code or f'HTTP {status}'})", denied=True)
    if NO_OTHER_HOST in text or status[:1] == "3":
        return RequestFault(Outcome.FAILED, "the server redirects to another address, which is not followed")
    if isinstance(error, FileNotFoundError):
        return RequestFault(Outcome.MISSING)
    if code in _FULL or status == "507":
        return RequestFault(Outcome.FULL)
    if status == _BEYOND_END:
        return RequestFault(Outcome.CORRUPT)
    if isinstance(error, UnknownConfigurationKeyError):
        return RequestFault(Outcome.FAILED, "a parameter or a name in credentials does not exist for this kind of url")
    if isinstance(error, InvalidPathError):
        return RequestFault(Outcome.FAILED, "the prefix of url is not valid")
    if "Parse(" in text:
        return RequestFault(Outcome.FAILED, "the server answers, but not in HTTP")
    if _first(_KIND, text) == "Connect":
        reason = next((reason_text for part, reason_text in _REASONS.items() if part in text), "no connection")
        return RequestFault(Outcome.FAILED, f"the server does not answer: {reason}")
    return RequestFault(Outcome.FAILED)


def refused_path(error: InvalidPathError) -> str:
    """Return the path of a listed object that the library refuses, because a part of it is empty, `.` or `..`, or has a
    control character. Raises the error if it is about another path."""
    match = _REFUSED.search(str(error))
    if match is None:
        raise error
    return match[1]


def is_beyond_end(error: Exception) -> bool:
    """Return whether an object ends before the requested range."""
    return _first(_STATUS, str(error)) == _BEYOND_END


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""
