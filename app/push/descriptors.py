"""How many files and connections this process may have open."""

import resource


def allow_descriptors() -> None:
    """As many as the machine's administrator allows: every connection and every piece of memory is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
