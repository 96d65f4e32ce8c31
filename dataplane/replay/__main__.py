"""`python -m dataplane.replay`. Spawned engine processes import this module too; they must not run the command line."""

if __name__ == "__main__":
    from dataplane.replay.command import main

    main(prog_name="larder replay")
