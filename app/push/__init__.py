"""From a committed generation to a node's answer.

`plan` decides (pure), `states` says what a push and a node can be, `desired` knows what should be, `link` talks,
`worker` joins them for one node, `operations` asks nodes for everything else, `supervisor` keeps an embedded data plane
running.
"""
