"""How far predictions are off: the interval around a predicted time, and where its numbers come from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """A run takes between `least` and `most` of its predicted time more than that; `source`: who measured it."""

    least: float
    most: float
    source: str

    def of(self, us: float) -> tuple[float, float]:
        """The times between which a run lies that is predicted to take `us`."""
        return us * (1 + self.least), us * (1 + self.most)

    def keys(self) -> dict[str, float | str]:
        """As one object of a command's answer."""
        return {"least": self.least, "most": self.most, "source": self.source}

    def __str__(self) -> str:
        return f"{self.least:+.0%} to {self.most:+.0%}"


OUTSIDE = "predictions are 27 % off, and 28 of these took longer than predicted"
"""Of 29 published rows that are on no page of ours; counted by others at commit eef3fdf."""

FUSED = Interval(0.0, 0.35, f"compared with 29 published times, {OUTSIDE}")
UNFUSED = Interval(-0.10, 0.15, "all 26 unfused rows of docs/validation.md lie in it")
"""Both of other people's kernels, on descriptions of machines that nothing was fitted to. `FUSED` is rough: of the 41
fused rows of docs/validation.md 19 lie in it, 9 were faster (by 12 % at most), 13 slower (by 72 % at most, FLUX's
GEMM+RS). tests/plans/test_margin.py counts them."""
