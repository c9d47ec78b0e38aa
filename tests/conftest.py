"""What all tests share: each pass over a tile program is verified; on a GPU, each virtual rank has queues."""

from __future__ import annotations

import os

os.environ.setdefault("TILELINK_VERIFY", "1")
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # read when CUDA is first used
