"""The source that the lowering makes: as it is meant to be read, with masks only where something does not divide.

After a change that is meant, TILELINK_RENEW=1 make test ARGS="-k test_lower" writes the expected sources anew.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.kernels.gather_gemm import small_world
from tests.programs import alone
from tilelink.backend.lower import Lowered, lower, lower_at
from tilelink.backend.targets import CPU, TARGETS
from tilelink.frontend.sizes import Sizes
from tilelink.kernels.all_gather_gated_matmul import all_gather_gated_matmul
from tilelink.kernels.all_gather_matmul import all_gather_matmul, pull, push

EXPECTED = Path(__file__).parent / "expected"
WORLD = 4
DIVIDING = {"M": 512, "N": 256, "K": 256}
UNEVEN = {"M": (130, 0, 7, 5), "N": 100, "K": 70}
SIZES: dict[str, dict[str, Any]] = {"dividing": DIVIDING, "uneven": UNEVEN}
ALL = [(s, z) for s in ("push", "pull", "multicast", "engine") for z in SIZES]


def lowered(schedule: Any = "push", absent: frozenset[str] = frozenset(), **sizes: Any) -> Lowered:
    if isinstance(schedule, str):
        schedule = all_gather_matmul.fit(schedule, world=WORLD, **sizes)
    bound = all_gather_matmul.bind(schedule, "bfloat16", absent)
    return lower_at(bound, Sizes.of(bound, WORLD, sizes), CPU)


def function(source: str, name: str) -> str:
    """One function of a module."""
    (found,) = re.findall(rf"^def {name}\(.*?(?=^\n|\Z)", source, flags=re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.parametrize(("schedule", "sizes"), ALL)
def test_source_is_as_expected(schedule: str, sizes: str) -> None:
    path = EXPECTED / f"{schedule}_{sizes}.py.txt"
    source = lowered(schedule, **SIZES[sizes]).source
    if os.environ.get("TILELINK_RENEW"):
        path.write_text(source)
    assert source == path.read_text()


@pytest.mark.parametrize("schedule", ["push", "pull"])
def test_no_masks_where_sizes_divide(schedule: str) -> None:
    source = lowered(schedule, **DIVIDING).source
    assert "mask" not in source
    assert "_inside" not in source


@pytest.mark.parametrize("dim", ["M", "N", "K"])
@pytest.mark.parametrize("schedule", ["push", "pull"])
def test_masks_of_what_leaves_a_rest_and_of_nothing_else(schedule: str, dim: str) -> None:
    """A rest along one dimension costs masks along this one only; loops over K have theirs in the loop."""
    sizes = {**DIVIDING, dim: DIVIDING[dim] + WORLD}
    source = lowered(NAMED[schedule], **sizes).source
    masked = set(re.findall(r"(\w+)_inside = ", source)) | ({"K"} if re.search(r"mask=.*< K", source) else set())
    assert masked == {dim}
    for line in source.splitlines():
        if "tl.load(x " in line or "tl.store(peer(" in line:
            assert ("mask" in line) == (dim in "MK")


def test_loops_read_zeros_beyond_the_end() -> None:
    """What is added up has to be masked with zeros; what is only copied need not."""
    source = lowered("push", **UNEVEN).source
    for line in function(source, "matmul").splitlines():
        if "tl.load(" in line and "mask=" in line:
            assert "other=0" in line, line


NAMED = {"push": push.changed(gather={"tile": (64, 64)}, matmul={"tile": (64, 64, 64)}),
         "pull": pull.changed(gather={"tile": (64, 64)}, matmul={"tile": (64, 64, 64)})}  # fmt: skip


def test_the_header_is_always_as_long() -> None:
    """The keys of Triton's cache hold line numbers."""
    every = [lowered(s, a, **SIZES[z]).source for s, z in ALL for a in (frozenset(), frozenset({"bias"}))]
    assert len({source.splitlines().index("@triton.jit") for source in every}) == 1
    assert len(set(every)) == len(every)


def test_equal_parts_begin_at_products_and_others_at_entries_of_a_table() -> None:
    equal, uneven = lowered("push", **DIVIDING), lowered("push", **UNEVEN)
    assert "M_parts" not in equal.source
    assert "M_parts" in [p.name for p in uneven.main.parameters]
    assert "M_first = tl.load(M_parts + home)" in function(uneven.source, "matmul")
    assert lowered("push", **{**UNEVEN, "M": (7, 7, 7, 7)}).facts.equal == {"M"}


def test_sizes_are_arguments_and_not_part_of_the_source() -> None:
    """One compilation serves all sizes of which the same holds."""
    many = [lowered(NAMED["push"], **{**DIVIDING, "M": 256 * k, "K": 64 * k}).source for k in (1, 2, 5)]
    assert len(set(many)) == 1


@pytest.mark.parametrize(("schedule", "sizes"), ALL)
def test_corners_of_blocks_are_counted_in_64_bits(schedule: str, sizes: str) -> None:
    """What a coordinate is multiplied by, to make an address, is a stride: such products exceed 32 bits first."""
    source = lowered(schedule, **SIZES[sizes]).source
    addresses = re.findall(r"tl\.(?:load|store)\((.*)\)$", source, flags=re.MULTILINE)
    products = [p for a in addresses for p in re.findall(r"([\w)]+)(?:\[[:, None]*\])? \* (?:\w+_stride_\w+|K\b)", a)]
    assert products
    assert set(products) == {"int64)"}


def test_several_loads_of_a_tensor_in_one_statement_are_several_blocks() -> None:
    x = [torch.full((16, 16), float(r + 1)) for r in range(3)]
    outs = small_world(3).run(lambda g: alone.three_loads(x[g.rank], group=g))
    assert all((out == 1 + 20 + 300).all() for out in outs)


def test_blocks_of_one_shape_along_other_dimensions_lie_elsewhere() -> None:
    """Offsets inside a block have a name of their own for each dimensions that the block goes along."""
    x = torch.randn(16, 32)
    (out,) = small_world(1).run(lambda g: alone.row_and_column(x, group=g))
    torch.testing.assert_close(out, x[:, :1] * x[:1])
    x = torch.randn(16, 32, 16)
    (out,) = small_world(1).run(lambda g: alone.two_planes(x, group=g))
    torch.testing.assert_close(out, x[:, 0] + x[0].sum(0))


@pytest.mark.parametrize(("target", "stages"), [("sm_90", 3), ("sm_100", 1)])
def test_several_dots_into_one_sum_have_one_stage_where_triton_gets_more_wrong(target: str, stages: int) -> None:
    """triton-lang/triton 10821: compiled for sm_100, a pipelined loop would give a sum before the last dot into it."""
    bound = alone.two_dots.bind("gemm", "bfloat16")
    made = lower_at(bound, Sizes.of(bound, 1, {"M": 256, "N": 256, "K": 512}), TARGETS[target])
    assert re.findall(r"num_stages=(\d)", made.source) == [str(stages)]


def test_one_dot_into_each_of_two_sums_is_pipelined() -> None:
    one = all_gather_gated_matmul.bind(all_gather_gated_matmul.fit("push", world=WORLD, **DIVIDING), "bfloat16")
    source = lower_at(one, Sizes.of(one, WORLD, DIVIDING), TARGETS["sm_100"]).source
    assert "num_stages=1" not in source


@pytest.mark.parametrize("schedule", ["push", "pull"])
def test_what_a_role_does_not_need_it_does_not_take(schedule: str) -> None:
    made = lowered(f"{schedule},gather.own=copied", frozenset({"bias"}), **DIVIDING)
    source, names = made.source, [p.name for p in made.main.parameters]
    assert "bias" not in source
    assert "weight" not in function(source, "gather")
    assert not re.search(r"\bx_", function(source, "matmul"))
    head = function(source, "all_gather_matmul").splitlines()[0]
    assert head == f"def all_gather_matmul({', '.join(names)}: tl.constexpr):"


def test_another_target_is_another_import_and_nothing_else() -> None:
    one = lowered("push", **DIVIDING)
    other = lower(one.program, one.facts, replace(CPU, module="somewhere.else_"))
    assert other.source == one.source.replace("tilelink.backend.targets.portable", "somewhere.else_")
    assert other.sha256 != one.sha256
