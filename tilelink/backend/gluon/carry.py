"""Copies by the copy engine for tiles alone: a block is stored from the memory into which it was loaded, and registers
hold none of it."""

from triton.experimental import gluon
from triton.experimental.gluon import language as tl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from tilelink.backend.gluon.ring import barriers, bring, end, fetch, place, ring


@gluon.jit
def _corner(lines, along):
    """Where a block begins: on which lines, and where along these."""
    return lines + (along,)  # noqa: RUF005, Triton knows no stars


@gluon.jit
def carry(
    source, at, first, target, to, first_to, length, step: tl.constexpr, size: tl.constexpr, num_stages: tl.constexpr
):
    """Copies `length` elements of lines, `step` of each and `size` bytes at a time, through a ring of so many blocks.
    `at` and `to`: which lines of source and target; `first` and `first_to`: where it begins along these. All blocks but
    one are on their way in while that one is on its way out. Afterwards the source is read, and the target may not be
    complete."""
    blocks, ready = ring(source, num_stages), barriers(num_stages)
    steps = (length + step - 1) // step
    for k in range(tl.minimum(steps, num_stages - 1)):
        mbarrier.expect(ready.index(k), size)
        fetch(source, _corner(at, first + k * step), blocks, ready, k)
    for k in range(steps):
        stage, phase = place(k, num_stages)
        mbarrier.wait(ready.index(stage), phase)
        bring(blocks, stage, target, _corner(to, first_to + k * step))
        ahead = k + num_stages - 1
        if ahead < steps:
            tma.store_wait(1)  # that of the step before, into whose stage the next block comes
            free, _ = place(ahead, num_stages)
            mbarrier.expect(ready.index(free), size)
            fetch(source, _corner(at, first + ahead * step), blocks, ready, free)
    tma.store_wait(0)
    end(ready, num_stages)
