"""`python -m photonlite.cli`, for where the `photonlite` command is not on the path."""

import sys

from photonlite.cli import main

if __name__ == "__main__":
    sys.exit(main())
