"""`python -m bench.node`: see `bench.node.command`."""

import sys

from bench.node.command import main

if __name__ == "__main__":
    sys.exit(main())
