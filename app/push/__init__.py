"""Delivery of committed generations to nodes, up to the nodes' answers.

`plan` decides the next step (pure), `states` defines the states of pushes and nodes, `desired` builds the wanted
snapshots, `link` talks to a node's control socket, `node_sync` combines them for one node, and `node_requests` sends
all other requests to nodes.
"""
