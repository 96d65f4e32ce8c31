"""Larder's shared-memory library in an unmodified vLLM: the plugin `larder_shim`.

vLLM loads it in each of its processes, if Larder is installed in vLLM's environment. It does nothing unless
`LARDER_SHIM=1`.
"""

import logging
import os

from dataplane.engines.vllm import message_queue, object_store
from dataplane.protocol.barrier import UnsupportedMachine, check_machine

VARIABLE = "LARDER_SHIM"
_log = logging.getLogger("vllm.larder")


def register() -> None:
    """Replace vLLM's message queue and object store in this process, if `LARDER_SHIM=1`. If a release of vLLM lacks
    one of the replaced classes, or on another processor, log a warning and leave vLLM's code as it is."""
    if os.environ.get(VARIABLE) != "1":
        return
    for module in (message_queue, object_store):
        try:
            check_machine()
            module.install()
        except (ImportError, AttributeError, UnsupportedMachine) as error:
            _log.warning("%s is not used: %s", module.__name__, error)
