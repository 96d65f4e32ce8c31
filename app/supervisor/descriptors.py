"""Limit on the open files and connections of this process."""

import resource


def allow_descriptors() -> None:
    """Raise the limit on open descriptors to the hard limit. Every connection and every piece of memory uses one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
