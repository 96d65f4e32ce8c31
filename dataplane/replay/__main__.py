"""`python -m dataplane.replay`. Spawned engine processes import this module too; they must not run the command line."""

if __name__ == "__main__":
    import sys

    from dataplane.base import entry_point
    from dataplane.replay.command import main

    sys.exit(entry_point.run(lambda: main(prog_name="larder replay"), "larder replay"))
