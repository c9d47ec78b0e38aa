"""`python -m bench.gpu`: see `bench.gpu.command`."""

import sys

from bench.gpu.command import main

if __name__ == "__main__":
    sys.exit(main())
