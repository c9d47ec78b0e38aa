"""What all tests share: each pass over a tile program is verified."""

from __future__ import annotations

import os

os.environ.setdefault("TILELINK_VERIFY", "1")
