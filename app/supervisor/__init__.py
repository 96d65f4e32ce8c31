"""The embedded data plane: start it, watch it, recover it with its memory, and replace it by new code.

`supervisor` runs one `node_process` at a time, `fd_store` keeps the file descriptors of its memory, and `memory_keeper`
talks to the process that keeps the memory between a stop and the next start.
"""
