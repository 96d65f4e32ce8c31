"""State of a node, published completely in each message, so that a late subscriber needs only one.

Times are Unix seconds of the node. Sizes are bytes. Tenants are shown names (`_default` for the empty salt).
"""
