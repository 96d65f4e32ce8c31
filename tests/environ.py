"""The environment of processes that a test starts."""

import os


def clean_environ(**settings: str) -> dict[str, str]:
    """Return the variables of this process without settings of Larder, and with these."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LARDER_")} | settings
