"""`python -m app` is the `larder` command."""

from app.cli import main

if __name__ == "__main__":
    main()
