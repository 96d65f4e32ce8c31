"""Larder's connector by its name: the plugin `larder_connector`.

vLLM loads it in each of its processes, if Larder is installed in vLLM's environment. `MultiConnector` and the API
server's statistics look connectors up by name alone.
"""

import logging

CONNECTOR = "LarderConnector"
_log = logging.getLogger("vllm.larder")


def register() -> None:
    """Let vLLM's `kv_connector` name the connector. In a release of vLLM without a registry of connectors, log a
    warning. The connector's module is imported when vLLM needs it."""
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

        KVConnectorFactory.register_connector(CONNECTOR, "dataplane.engines.vllm.connector", CONNECTOR)
    except (ImportError, AttributeError) as error:
        _log.warning("%s cannot be named without its module path: %s", CONNECTOR, error)
    except ValueError:  # vLLM has called this function before in this process
        return
