"""The `larder` command, also as `python -m app`."""

import sys

from dataplane.base import entry_point

USAGE_EXIT_CODE = 2
"""Also of a wrong usage: a service manager does not try again."""


def main() -> None:
    """Run the command line, and exit. If a package is missing, say which extra has it."""
    sys.exit(entry_point.run(_main, "larder"))


def _main() -> None:
    try:
        from app.cli import larder

        larder.main(prog_name="larder")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("app", "dataplane", "migrations"):
            raise
        sys.stderr.write(
            f"larder: this command needs the package {error.name!r}, which is not installed. Machines that run Larder "
            "need 'larder[server]'; 'larder[cli]' is enough for commands that ask a server. See docs/install.md.\n"
        )
        sys.exit(USAGE_EXIT_CODE)


if __name__ == "__main__":
    main()
