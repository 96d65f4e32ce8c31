"""Reports of nodes, kept in memory: the current fleet, the last hour, and events for watchers.

Messages of nodes raise no exception beyond `subscriber`: unreadable ones are counted.
"""
