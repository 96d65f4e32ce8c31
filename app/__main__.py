"""The `larder` command, also as `python -m app`."""

import os
import sys

USAGE_EXIT_CODE = 2
"""Also of a wrong usage: a service manager does not try again."""


def main() -> None:
    """Run the command line. If a package is missing, say which extra has it."""
    os.umask(0o077)  # files, sockets and databases are of this user alone, whatever the caller's umask
    try:
        from app.cli import main as run

        run()
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
