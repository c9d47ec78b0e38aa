"""`python -m tilelink`: the command line, where the console script is not installed."""

import sys

from tilelink.tools.cli import main

sys.exit(main())
