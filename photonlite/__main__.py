"""`python -m photonlite`, and the `photonlite` command."""

import sys

try:
    from photonlite.cli import main
except KeyboardInterrupt:  # importing takes a second
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main())
