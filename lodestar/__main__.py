"""`python -m lodestar` is the command `lodestar`."""

import sys

from lodestar import main

if __name__ == "__main__":
    sys.exit(main())
