"""Operation numbers and names of a release, and the answers that its clients cannot decode.

Argument: answers in hexadecimal digits by operation, as JSON.
"""

import json
import sys
from typing import Any

import msgspec

try:
    from lmcache.v1.multiprocess.rpc import get_rpc_specs
    from lmcache.v1.multiprocess.transport.zmq_impl.mq import msgspec_decode
    from lmcache.v1.multiprocess.transport.zmq_impl.wire import LEGACY_OPERATION_IDS

    numbers = dict(LEGACY_OPERATION_IDS)
    responses: dict[str, Any] = {name: spec.response_type for name, spec in get_rpc_specs().items()}
except ImportError:  # before 0.5.6
    from lmcache.v1.multiprocess.mq import msgspec_decode
    from lmcache.v1.multiprocess.protocol import get_response_class
    from lmcache.v1.multiprocess.protocols.base import RequestType

    numbers = {each.name.lower(): each.value for each in RequestType}
    responses = {each.name.lower(): get_response_class(each) for each in RequestType}

undecodable = {}
for operation, digits in json.loads(sys.argv[1]).items():
    if operation in responses:
        try:
            msgspec_decode(bytes.fromhex(digits), cls=responses[operation])
        except (msgspec.DecodeError, TypeError, ValueError) as error:
            undecodable[operation] = repr(error)
print(json.dumps({"numbers": numbers, "names": sorted(responses), "undecodable": undecodable}))
