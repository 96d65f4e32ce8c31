"""`python -m dataplane.replay`. Engine processes import this module again when they are spawned: nothing of the command
line is for them."""

if __name__ == "__main__":
    from dataplane.replay.command import main

    main(prog_name="larder replay")
