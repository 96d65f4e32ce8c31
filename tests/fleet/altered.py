"""A data plane that Python code alters before it starts. Arguments: the code, and those of the data plane."""

import sys

from dataplane.__main__ import main

if __name__ == "__main__":
    exec(sys.argv.pop(1))
    sys.exit(main())
