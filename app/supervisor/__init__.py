"""The embedded data plane: start it, watch it, start it again when it ends, and replace it by new code.

`supervisor` runs one `node_process` at a time. The memory of a data plane that ends is held by another process
(`dataplane.recovery`).
"""
