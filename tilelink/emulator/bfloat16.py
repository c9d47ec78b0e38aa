"""bfloat16 as raw 16-bit words: the upper half of a float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

QUIET_NAN = np.uint16(0x7FC0)


def to_float32(words: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The values of bfloat16 words, exactly."""
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)


def from_float32(values: NDArray[Any]) -> NDArray[np.uint16]:
    """The bfloat16 words nearest to float32 values; ties go to even, NaN to the quiet NaN."""
    values = np.ascontiguousarray(values, np.float32)
    bits = values.view(np.uint32)
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    with np.errstate(over="ignore"):
        words = ((bits + half) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), QUIET_NAN, words)
