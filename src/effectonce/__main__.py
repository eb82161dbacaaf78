"""`python -m effectonce` is the `effectonce` command."""

import sys

from effectonce.cli import main

if __name__ == "__main__":
    sys.exit(main())
