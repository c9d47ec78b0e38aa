"""Copies by the copy engine for tiles alone: it stores a block from the shared memory that it loaded it into, and no
register holds any of it."""

from triton.experimental import gluon
from triton.experimental.gluon import language as tl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from tilelink.backend.gluon.ring import barriers, bring, end, fetch, place, ring


@gluon.jit
def _corner(lines, along):
    """The corner of a block: its lines, and the place along these lines."""
    return lines + (along,)  # noqa: RUF005, Triton knows no stars


@gluon.jit
def carry(
    source, at, first, target, to, first_to, length, step: tl.constexpr, size: tl.constexpr, num_stages: tl.constexpr
):
    """Copies `length` elements of lines through a ring of `num_stages` blocks. A block has `step` elements of each
    line, `size` bytes in all. `at` and `to`: the lines of source and target; `first` and `first_to`: where the copy
    begins along them. While one block is stored, all other blocks are loaded. Afterwards the source has been read, but
    the target may not be complete."""
    lines: tl.constexpr = source.block_type.shape[0]
    columns: tl.constexpr = source.block_type.shape[1]
    blocks, ready = ring(source, (lines, columns), num_stages), barriers(num_stages)
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
            tma.store_wait(1)  # the store of the step before, whose stage the next block is loaded into
            free, _ = place(ahead, num_stages)
            mbarrier.expect(ready.index(free), size)
            fetch(source, _corner(at, first + ahead * step), blocks, ready, free)
    tma.store_wait(0)
    end(ready, num_stages)
