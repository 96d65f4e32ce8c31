"""Words between a data plane and the supervisor that started it, one per datagram of a socket pair.

The data plane says READY when it has imported everything and waits. Until the supervisor says BEGIN, it is a standby
process, which costs only memory and takes over in milliseconds; when the supervisor ends, it ends, too. It then says
BEGUN, and SERVING when every socket is bound, or FAILED with the reason.
"""

READY, BEGIN, BEGUN, SERVING, FAILED = b"ready", b"begin", b"begun", b"serving", b"failed "
MAX_BYTES = 4096
