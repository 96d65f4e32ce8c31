"""The `larder` command, also as `python -m app`."""

import sys


def main() -> None:
    """Run the command line; without the server's packages, say how to install them."""
    try:
        from app.cli import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("app", "dataplane"):
            raise
        needed = "install Larder with: pip install 'larder[server]'"
        sys.exit(f"larder: the package {error.name!r} is not installed; {needed}")
    run()


if __name__ == "__main__":
    main()
