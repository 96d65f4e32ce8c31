"""`python -m dataplane.replay`. Spawned engine processes import this module too; they must not run the command line."""

if __name__ == "__main__":
    import os

    from dataplane.replay.command import main

    os.umask(0o077)

    main(prog_name="larder replay")
