"""Selects the nodes of a request."""

from app.ingest.fleet import Fleet, FleetNode
from app.push.node_requests import NodeRequests
from app.schemas.cache.actions import TargetedPost
from app.services.base import checks


def known_node(fleet: Fleet, name: str) -> FleetNode:
    """Return the node. Raises NotFound."""
    node = fleet.nodes.get(name)
    if node is None:
        raise checks.missing("node", name)
    return node


class Targets:
    """Nodes to which a request is forwarded."""

    def __init__(self, node_requests: NodeRequests, fleet: Fleet) -> None:
        self.node_requests = node_requests
        self._fleet = fleet

    def selected(self, request: TargetedPost) -> list[FleetNode]:
        """Return the nodes that a request names, sorted by name; all known nodes if it names none, so that disconnected
        ones are reported and not omitted. Raises Invalid for an unknown name; NodeUnreachable if no node is connected,
        or if the only named node is not."""
        faults = checks.Faults()
        if request.node is not None and request.nodes is not None:
            faults.add("nodes", "expected at most one of 'node' and 'nodes'")
        requested = [("node", request.node)] if request.node is not None else []
        requested += [(f"nodes[{at}]", name) for at, name in enumerate(request.nodes or ())]
        for path, name in requested:
            if name not in self._fleet.nodes:
                faults.add(path, f"there is no node {name[:128]!r}")
        faults.stop()
        if not requested:
            return self.one_or_all(None)
        nodes = [self._fleet.nodes[name] for name in sorted({name for _, name in requested})]
        if len(nodes) == 1:
            self.node_requests.check(nodes[0])  # raises NodeUnreachable
        return nodes

    def node(self, name: str) -> FleetNode:
        """Return the node. Raises NotFound."""
        return known_node(self._fleet, name)

    def one_or_all(self, name: str | None) -> list[FleetNode]:
        """Return one node, which must be connected, or all known ones, so that disconnected ones are reported. Raises
        NotFound; NodeUnreachable if no node is connected."""
        if name is not None:
            return self.one_or_connected(name)
        self.node_requests.connected()  # raises NodeUnreachable
        return [node for _, node in sorted(self._fleet.nodes.items())]

    def one_or_connected(self, name: str | None) -> list[FleetNode]:
        """Return one node, or all connected ones. Raises NotFound, NodeUnreachable."""
        if name is None:
            return self.node_requests.connected()
        node = self.node(name)
        self.node_requests.check(node)
        return [node]
