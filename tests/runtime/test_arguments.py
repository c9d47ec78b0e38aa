"""A bad call is told from its arguments, with the place of the call, before anything is written; the world goes on."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import tilelink as tk
from tests.programs.alone import forgotten, keep, kept_inside, prefix, prefixed, swapped, two_outputs
from tilelink.errors import (
    ArgumentError,
    DeviceError,
    DimensionError,
    DtypeError,
    HeapError,
    ScheduleError,
    ShapeError,
    StrideError,
    TileLinkError,
    TileSizeError,
    WorldError,
)
from tilelink.kernels import all_gather_matmul as module
from tilelink.kernels.all_gather_matmul import all_gather_matmul, push
from tilelink.kernels.matmul_all_reduce import matmul_all_reduce
from tilelink.runtime.cpu.world import CpuWorld, Group

alone = tk.Schedule(keep=tk.SMs(tile=(16, 16)))
WORLD, ROWS, K, N = 2, 8, 16, 24
M = WORLD * ROWS
PATTERN = -7.0
KERNEL = str(module.__file__)


def line(marker: str) -> int:
    """The line of this file that ends with a marker."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (found,) = [k for k, text in enumerate(lines, 1) if text.endswith(f"# {marker}")]
    return found


def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape or (ROWS, K)).to(dtype)


def weight(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape or (K, N)).to(dtype)


def output(*shape: int) -> torch.Tensor:
    return torch.full(shape or (M, N), PATTERN)


@pytest.fixture(scope="module")
def world() -> CpuWorld:
    return CpuWorld(WORLD, heap_bytes=16 << 10, signal_bytes=512, sms=20)


def check_usable(world: CpuWorld) -> None:
    """A correct call in the same world gives what it should."""
    for out in world.run(lambda group: all_gather_matmul(x(), weight(), output(), group=group)):
        assert torch.equal(out, torch.full((M, N), float(K)))


@dataclass(frozen=True)
class Bad:
    """A call, the error it makes, and what the message says. `at`: its file, if not this one, where
    `marker` says the line."""

    name: str
    error: type[TileLinkError]
    says: str
    given: Callable[[], tuple[Any, ...]] = lambda: (x(), weight())
    out: Callable[[], torch.Tensor] = output
    options: dict[str, Any] = field(default_factory=dict)
    at: str = __file__
    marker: str = "bad call"


TOO_MANY = push.changed(gather={"count": 20, "tile": (1, 1)})  # too many
BAD = [
    Bad(
        "too few dimensions",
        ShapeError,
        "x has shape (8,); it is declared (M, cut over the ranks, K)",
        lambda: (x(8), weight()),
    ),
    Bad(
        "too many dimensions",
        ShapeError,
        "weight has shape (1, 16, 24); it is declared (K, N)",
        lambda: (x(), weight(1, K, N)),
    ),
    Bad(
        "K of x and weight",
        ShapeError,
        "weight has shape (17, 24), so K is 17 there; x makes it 16",
        lambda: (x(), weight(17, N)),
    ),
    Bad(
        "weight of an nn.Linear",
        ShapeError,
        "weight has shape (24, 16), so K is 24 there; x makes it 16. It is declared (K, N): pass weight.T",
        lambda: (x(), weight(K, N).T),
    ),
    Bad(
        "two dtypes",
        DtypeError,
        "x is bfloat16, weight is float16, out is float32: tl.dot takes operands of one dtype; left is bfloat16",
        lambda: (x(dtype=torch.bfloat16), weight(dtype=torch.float16)),
    ),
    Bad(
        "complex",
        DtypeError,
        "x: torch.complex64 is not a dtype TileLink knows",
        lambda: (x(dtype=torch.complex64), weight()),
    ),
    Bad("unsigned", DtypeError, "weight: torch.uint16 is not a dtype", lambda: (x(), weight(dtype=torch.uint16))),
    Bad(
        "float64",
        DtypeError,
        "tl.dot does not take float64",
        lambda: (x(dtype=torch.float64), weight(dtype=torch.float64)),
    ),
    Bad(
        "int32",
        DtypeError,
        "tl.dot does not take int32",
        lambda: (x(dtype=torch.int32), weight(dtype=torch.int32)),
    ),
    Bad("output repeats rows", StrideError, "and strides (0, 1)", out=lambda: output(1, N).expand(M, N)),
    Bad("output repeats columns", StrideError, "and strides (1, 0)", out=lambda: output(M, 1).expand(M, N)),
    Bad(
        "output's rows overlap",
        StrideError,
        "and strides (3, 1)",
        out=lambda: output(3 * M + N).as_strided((M, N), (3, 1)),
    ),
    Bad(
        "output's rows and columns are one",
        StrideError,
        "and strides (1, 1)",
        out=lambda: output(M + N).as_strided((M, N), (1, 1)),
    ),
    Bad(
        "output has a row more",
        ShapeError,
        "out has shape (17, 24), so M is 17 there; x makes it 16",
        out=lambda: output(17, N),
    ),
    Bad(
        "output has a column less",
        ShapeError,
        "out has shape (16, 23), so N is 23 there; weight makes it 24",
        out=lambda: output(M, 23),
    ),
    Bad("output wants a gradient", ArgumentError, "out requires a gradient", out=lambda: output().requires_grad_()),
    Bad("nothing given", ArgumentError, "all_gather_matmul needs x: (M, cut over the ranks, K)", lambda: ()),
    Bad("weight is missing", ArgumentError, "all_gather_matmul needs weight: (K, N)", lambda: (x(),)),
    Bad("None for x", ArgumentError, "all_gather_matmul needs x", lambda: (None, weight())),
    Bad(
        "bias of another length",
        ShapeError,
        "bias has shape (23,), so N is 23 there; weight makes it 24",
        options={"bias": torch.ones(23)},
    ),
    Bad(
        "unknown keyword",
        ArgumentError,
        "and the options schedule=, group=, parts=, slot=, timed=; did you mean weight?",
        options={"wieght": weight()},
    ),
    Bad(
        "buffer as keyword",
        ArgumentError,
        "has no parameter full; it takes x, weight, out, bias",
        options={"full": output(M, K)},
    ),
    Bad("x twice", ArgumentError, "all_gather_matmul got x twice", options={"x": x()}),
    Bad(
        "too many tensors",
        ArgumentError,
        "all_gather_matmul takes x, weight, out, bias, gathered; 6 tensors given",
        lambda: (x(), weight(), None, None, None, None, None),
    ),
    Bad("list", ArgumentError, "x is a list, not a tensor", lambda: (x().tolist(), weight())),
    Bad("number", ArgumentError, "weight is a float, not a tensor", lambda: (x(), 1.0)),
    Bad("numpy", ArgumentError, "x is a ndarray, not a tensor: torch.from_numpy", lambda: (x().numpy(), weight())),
    Bad("layer", ArgumentError, "weight is a Linear, not a tensor", lambda: (x(), torch.nn.Linear(2, 2))),
    Bad("list of schedules", ScheduleError, "schedule= is a list: write tk.Schedule", options={"schedule": [push]}),
    Bad("meta", DeviceError, "x is on meta; this world is on cpu", lambda: (x().to("meta"), weight())),
    Bad("negated", StrideError, "x is a negated view", lambda: (torch._neg_view(x()), weight())),
    Bad("sparse", StrideError, "x has layout torch.sparse_coo", lambda: (x().to_sparse(), weight())),
    Bad(
        "parts for fewer ranks",
        ShapeError,
        "parts of M are (8,): 2 lengths are needed, one a rank",
        options={"parts": {"M": (8,)}},
    ),
    Bad(
        "parts for more ranks",
        ShapeError,
        "parts of M are (8, 8, 0): 2 lengths are needed",
        options={"parts": {"M": (8, 8, 0)}},
    ),
    Bad("negative part", ShapeError, "parts of M are (17, -1)", options={"parts": {"M": (17, -1)}}),
    Bad(
        "another part",
        ShapeError,
        "x has shape (8, 16), so M is 8 there; parts makes it 9 on rank ",
        options={"parts": {"M": (9, 9)}},
    ),
    Bad(
        "output is not the sum of parts",
        ShapeError,
        "out has shape (17, 24), so M is 17 there; parts makes it 16",
        out=lambda: output(17, N),
        options={"parts": {"M": (8, 8)}},
    ),
    Bad(
        "parts of what is not cut",
        ShapeError,
        "parts of K: no input or output is cut along it; declare one of them tk.Sharded along K, or give parts of M",
        options={"parts": {"K": (8, 8)}},
    ),
    Bad(
        "parts of what is not there",
        ShapeError,
        "parts of Q: no input or output is cut along it; give parts of M",
        options={"parts": {"Q": (8, 8)}},
    ),
    Bad("text as a part", ShapeError, "parts of M are ('8', 8)", options={"parts": {"M": ("8", 8)}}),
    Bad("half a row", ShapeError, "parts of M are (8.0, 8.5)", options={"parts": {"M": (8.0, 8.5)}}),
    Bad("truth as a part", ShapeError, "parts of M are (True, 8)", options={"parts": {"M": (True, 8)}}),
    Bad("one number as parts", ShapeError, "parts of M are 16", options={"parts": {"M": 16}}),
    Bad("parts without a name", ShapeError, "parts are (8, 8)", options={"parts": (8, 8)}),
    Bad("slot too large", ScheduleError, "slot 2: this world has 2", options={"slot": 2}),
    Bad("negative slot", ScheduleError, "slot -1: this world has 2", options={"slot": -1}),
    Bad("slot in words", ScheduleError, "slot 'a': this world has 2", options={"slot": "a"}),
    Bad("slot of a fraction", ScheduleError, "slot 1.0: this world has 2", options={"slot": 1.0}),
    Bad(
        "unknown schedule",
        ScheduleError,
        "has no schedule pusch; it has push, pull, multicast, engine, pieces, few; did you mean push?",
        options={"schedule": "pusch"},
    ),
    Bad(
        "tile beyond the tensor",
        TileSizeError,
        "is larger than the tensor, of 16; use at most 16 (all_gather_matmul.fit(",
        options={"schedule": push},
        at=KERNEL,
    ),
    Bad(
        "too many SMs",
        ScheduleError,
        "asks for 20 SMs by count and at least one for the others; the device has 20",
        options={"schedule": all_gather_matmul.fit(TOO_MANY, M=M, K=K, N=N)},
        marker="too many",
    ),
    Bad(
        "heap too small",
        HeapError,
        "a slot needs 32768 bytes for full and 256 for signals; it has 7424 and 512",
        lambda: (x(ROWS, 512), weight(512, N)),
    ),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_bad_call(bad: Bad, world: CpuWorld) -> None:
    outs = [bad.out() for _ in range(WORLD)]

    def rank(group: Group) -> None:
        tensors = bad.given()
        out: dict[str, Any] = {"out": outs[group.rank]} if len(tensors) < 3 else {}
        all_gather_matmul(*tensors, group=group, **out, **bad.options)  # bad call

    with pytest.raises(TileLinkError) as e:
        world.run(rank)
    check_error(e.value, bad.error, bad.says, bad.marker, bad.at)
    assert all((out == PATTERN).all() for out in outs)
    check_usable(world)


def test_gradients_are_not_lost_in_silence(world: CpuWorld) -> None:
    parameter = torch.nn.Parameter(weight())

    def rank(group: Group) -> torch.Tensor:
        return all_gather_matmul(x(), parameter, group=group)  # gradient

    with pytest.raises(ArgumentError) as e:
        world.run(rank)
    says = "all_gather_matmul has no gradient, and weight would lose its gradient: call it under torch.no_grad()"
    check_error(e.value, ArgumentError, says, "gradient")
    assert "all_gather_linear" in str(e.value)
    with torch.no_grad():
        assert all((out == K).all() for out in world.run(rank))


def test_an_output_that_nobody_writes(world: CpuWorld) -> None:
    with pytest.raises(ArgumentError, match="no tile of forgotten reads out, or stores to it; a result is stored, out"):
        world.run(lambda group: forgotten(x(), output(ROWS, N), schedule=alone, group=group))
    with pytest.raises(ArgumentError, match=r"forgotten needs out: .M, N.; it is an input, since no tile stores to it"):
        world.run(lambda group: forgotten(x(), schedule=alone, group=group))
    stores = f"no tile stores to it; tiles store to x ({keep.written_parameters['there']})"
    with pytest.raises(ArgumentError, match=re.escape(f"swapped needs out: (M, K); it is an input, since {stores}")):
        world.run(lambda group: swapped(x(), schedule=alone, group=group))
    with pytest.raises(ArgumentError, match="kept_inside has no output: its tiles store to none of x"):
        world.run(lambda group: kept_inside(x(), schedule=alone, group=group))


def test_a_size_that_only_an_output_has(world: CpuWorld) -> None:
    said = "prefix: the size of N is unknown: no tensor that is given has it, only out; pass it"
    with pytest.raises(ArgumentError, match=said):
        world.run(lambda group: prefix(x(), schedule=prefixed, group=group))


def check_error(error: TileLinkError, kind: type[TileLinkError], says: str, marker: str, file: str = __file__) -> None:
    assert type(error) is kind, error
    assert says in str(error)
    assert error.site is not None
    assert error.site.file == file
    if file == __file__:
        assert error.site.line == line(marker)
    assert f"{error.site}: " in str(error)


@pytest.mark.parametrize("other", ["x", "weight"])
def test_output_shares_memory_with_an_input(world: CpuWorld, other: str) -> None:
    memory = [torch.full((M * N + K * N,), PATTERN) for _ in range(WORLD)]
    shape = {"x": (ROWS, K), "weight": (K, N)}[other]

    def rank(group: Group) -> None:
        mine = memory[group.rank]
        at = M * N - 1  # the last element of the output is the first of the input
        tensors: dict[str, Any] = {"x": x(), "weight": weight()}
        tensors[other] = mine[at : at + shape[0] * shape[1]].view(shape)
        all_gather_matmul(**tensors, out=mine[: M * N].view(M, N), group=group)  # overlap

    with pytest.raises(ArgumentError) as e:
        world.run(rank)
    check_error(
        e.value,
        ArgumentError,
        f"out shares memory with {other}: tiles run in any order, so one may store to out where another, on this rank "
        f"or a peer, has yet to read {other}; out needs memory of its own",
        "overlap",
    )
    assert all((m == PATTERN).all() for m in memory)
    check_usable(world)


def test_outputs_share_memory(world: CpuWorld) -> None:
    memory = torch.full((ROWS, K), PATTERN)
    both = tk.Schedule(store_both=tk.SMs(1, tile=(16, 16)))
    with pytest.raises(ArgumentError) as e:
        world.run(lambda g: two_outputs(x(), memory, memory, schedule=both, group=g))  # outputs
    check_error(
        e.value,
        ArgumentError,
        "a shares memory with b: both are results, and tiles store them in any order; a and b need memory of their own",
        "outputs",
    )
    assert (memory == PATTERN).all()
    check_usable(world)


def test_output_may_lie_next_to_an_input(world: CpuWorld) -> None:
    """Behind it, and between its rows."""
    flat = [torch.ones(ROWS * K + M * N) for _ in range(WORLD)]
    wide = [torch.ones(M, K + N) for _ in range(WORLD)]

    def rank(group: Group) -> None:
        f, w = flat[group.rank], wide[group.rank]
        all_gather_matmul(f[: ROWS * K].view(ROWS, K), weight(), f[ROWS * K :].view(M, N), group=group)
        all_gather_matmul(w[:ROWS, :K], weight(), w[:, K:], group=group)

    world.run(rank)
    for f, w in zip(flat, wide, strict=True):
        assert (f[ROWS * K :] == K).all() and (f[: ROWS * K] == 1).all()
        assert (w[:, K:] == K).all() and (w[:, :K] == 1).all()


def test_lengths_of_parts_may_be_any_integers(world: CpuWorld) -> None:
    for parts in ([ROWS, ROWS], torch.tensor([ROWS, ROWS]), torch.tensor([ROWS, ROWS]).numpy()):
        outs = world.run(lambda group, p=parts: all_gather_matmul(x(), weight(), group=group, parts={"M": p}))  # type: ignore[misc]
        assert all((out == K).all() for out in outs)


def test_the_users_frames_alone_are_shown(world: CpuWorld) -> None:
    def rank(group: Group) -> None:
        all_gather_matmul(x(8), weight(), group=group)  # shown

    with pytest.raises(ShapeError) as e:
        world.run(rank)  # run
    frames = [(f.path, f.lineno + 1) for f in e.traceback]
    assert frames == [(Path(__file__), line("run")), (Path(__file__), line("shown"))]


def test_worlds_run_one_at_a_time(world: CpuWorld) -> None:
    for inner in (world, CpuWorld(1)):
        with pytest.raises(WorldError, match="a CpuWorld runs already in this process"):
            world.run(lambda group, inner=inner: inner.run(lambda other: None))  # type: ignore[misc]
    check_usable(world)


def test_a_group_of_another_world(world: CpuWorld) -> None:
    others = CpuWorld(WORLD).run(lambda group: group)
    with pytest.raises(WorldError, match="all_gather_matmul is called on a group of another world than the one that"):
        world.run(lambda group: all_gather_matmul(x(), weight(), group=others[group.rank]))


def test_parts_that_no_call_can_say_are_refused_by_the_check() -> None:
    sizes = {"N": 17, "K": 7}
    with pytest.raises(DimensionError, match=r"test_arguments.py:\d+: only buffers of"):
        matmul_all_reduce.check("fused", world=2, M=(0, 3), **sizes)
    assert matmul_all_reduce.check("fused", world=2, M=3, **sizes).verdict == "safe"

    def rank(group: Group) -> None:
        matmul_all_reduce(x(3, 7), x(7, 17), schedule="fused", parts={"M": (0, 3)}, group=group)

    with pytest.raises(ShapeError, match="parts of M: no input or output is cut along it"):
        CpuWorld(2).run(rank)
    assert all_gather_matmul.check("push", world=2, M=(0, 3), **sizes).verdict == "safe"


def test_what_is_run_is_a_function(world: CpuWorld) -> None:
    with pytest.raises(ArgumentError, match=r"CpuWorld.run\(3\): it takes a function of a rank's group"):
        world.run(3)  # type: ignore[arg-type]
    check_usable(world)


def test_a_program_that_is_run_itself_is_an_error_at_the_users_line(world: CpuWorld) -> None:
    """Its rank's thread has no line of the user's."""
    for wrong in (all_gather_matmul, partial(all_gather_matmul, x(), weight())):
        with pytest.raises(ArgumentError, match="group= is missing") as error:
            world.run(wrong)
        site = error.value.site
        assert site is not None and (site.file, site.text) == (__file__, "world.run(wrong)")
    check_usable(world)


def test_schedule_by_name_is_fitted_where_the_same_as_an_object_is_not(world: CpuWorld) -> None:
    def rank(schedule: tk.Schedule | str) -> list[torch.Tensor]:
        return world.run(lambda group: all_gather_matmul(x(), weight(), schedule=schedule, group=group))

    with pytest.raises(TileSizeError, match=r"all_gather_matmul\.fit\(schedule, \.\.\.\) does that"):
        rank(push)
    fitted = all_gather_matmul.fit(push, world=WORLD, M=M, N=N, K=K)
    for a, b in zip(rank("push"), rank(fitted), strict=True):
        assert torch.equal(a, b)


def test_an_error_that_the_rank_catches_leaves_the_run_as_it_was(world: CpuWorld) -> None:
    def rank(group: Group) -> torch.Tensor:
        with pytest.raises(ArgumentError):
            all_gather_matmul(x(), group=group)
        with pytest.raises(ScheduleError):
            all_gather_matmul(x(), weight(), slot=5, group=group)
        return all_gather_matmul(x(), weight(), group=group)

    assert all((out == K).all() for out in world.run(rank))


@pytest.mark.parametrize("size", [0, -1, "4", 2.0, True, None, 1025], ids=repr)
def test_no_such_world(size: Any) -> None:
    with pytest.raises(WorldError) as e:
        CpuWorld(size)  # world
    check_error(e.value, WorldError, f"a world of {size!r}: it has from 1 to 1024 ranks", "world")


def test_no_workers_are_no_world() -> None:
    with pytest.raises(WorldError) as e:
        CpuWorld(2, resident=0)  # resident
    check_error(e.value, WorldError, "resident=0: at least 1 worker of a rank", "resident")


def test_call_outside_of_a_run(world: CpuWorld) -> None:
    (group, _) = world.run(lambda group: group)
    out = output()
    with pytest.raises(WorldError) as e:
        all_gather_matmul(x(), weight(), out, group=group)  # outside
    check_error(e.value, WorldError, "all_gather_matmul is called outside of CpuWorld.run", "outside")
    with pytest.raises(WorldError, match=r"test_arguments.py:\d+: synchronize is called outside of CpuWorld.run"):
        group.synchronize()
    assert (out == PATTERN).all()
    check_usable(world)
