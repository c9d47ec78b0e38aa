"""`python -m bench`: see `bench.command`."""

import os
import sys

# Cases run in parallel, one per core. Otherwise the matmuls of each case would take all cores and wait for each other.
for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

if __name__ == "__main__":
    from bench.command import main

    sys.exit(main())
