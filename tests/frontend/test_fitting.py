"""Fitting: tiles that are larger than their tensors."""

from __future__ import annotations

from typing import Any

import pytest
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

import tilelink as tk
from tilelink.backend.targets import FORMS
from tilelink.frontend.sizes import Sizes
from tilelink.kernels.all_gather_gated_matmul import all_gather_gated_matmul
from tilelink.kernels.all_gather_matmul import all_gather_matmul, push


@pytest.mark.parametrize(
    ("sizes", "gather", "matmul"),
    [
        (dict(M=8192, N=3584, K=8192), (128, 2048), (128, 256, 64)),
        (dict(M=[100, 20], N=300, K=40), (128, 64), (128, 256, 64)),
        (dict(M=[3, 0], N=5, K=7), (16, 16), (16, 16, 16)),
        (dict(N=33), (128, 2048), (128, 64, 64)),
    ],
    ids=str,
)
def test_fit(sizes: dict[str, Any], gather: tuple[int, ...], matmul: tuple[int, ...]) -> None:
    fitted = all_gather_matmul.fit("push", world=2, **sizes)
    assert fitted["gather"].tile == gather and fitted["matmul"].tile == matmul
    assert fitted.changed(gather={"tile": (128, 2048)}, matmul={"tile": (128, 256, 64)}) == push


@pytest.mark.parametrize(("k", "step"), [(0, 32), (16, 32), (17, 32), (40, 64)])
def test_products_of_8_bits_have_steps_of_32_or_more(k: int, step: int) -> None:
    """NVIDIA GPUs take no shorter ones."""
    sizes: dict[str, Any] = dict(M=20, N=20, K=k)
    fitted = all_gather_matmul.fit("push", world=2, dtypes="float8_e4m3fn", **sizes)
    assert fitted["matmul"].tile[2] == step
    all_gather_matmul.bound_at(fitted, world=2, sizes=sizes, dtypes="float8_e4m3fn")


@tk.tile
def multiply_at_once(t, x, weight, out):  # type: ignore[no-untyped-def]
    out[t].store(tl.dot(x[t.rows, :].load(), weight[:, t.cols].load(), input_precision="ieee"))


@tk.program
def at_once(x: tk.Local("M", "K"), weight: tk.Local("K", "N"), out: tk.Local("M", "N")):  # type: ignore[no-untyped-def, valid-type]
    multiply_at_once[tk.tiles(out)](x, weight, out)


whole_steps = tk.Schedule(multiply_at_once=tk.SMs(tile=(128, 128), whole={"K": 32}))


def test_exact_products_on_a_gpu_have_small_tiles() -> None:
    """Half the step if a step has two products; also if a product stands outside of loops."""
    sizes: dict[str, Any] = dict(M=512, N=512, K=512)
    options: dict[str, Any] = {"world": 2, "dtypes": "float32", "target": FORMS["sm_90"]}
    assert all_gather_matmul.fit("push", **options, **sizes)["matmul"].tile == (64, 64, 32)
    gated = all_gather_gated_matmul.fit("push", **options, **sizes)
    assert [r.tile for n, r in gated.items() if n != "gather"] == [(64, 64, 16)]
    assert at_once.fit("whole_steps", **options, **sizes | {"K": 32})["multiply_at_once"].tile == (64, 64)


def test_fit_keeps_whole_dimensions() -> None:
    whole = push.changed(gather={"tile": (128, None)})
    assert all_gather_matmul.fit(whole, M=20, N=20, K=20)["gather"].tile == (32, None)


@settings(max_examples=100, deadline=None)
@given(
    world=st.integers(1, 8),
    data=st.data(),
    n=st.integers(0, 600),
    k=st.integers(0, 600),
    name=st.sampled_from(["push", "pull"]),
)
def test_what_is_fitted_fits(world: int, data: st.DataObject, n: int, k: int, name: str) -> None:
    """No tile of it is larger than its tensor, and none is larger than it was or smaller than tl.dot takes."""
    parts = data.draw(st.lists(st.integers(0, 300), min_size=world, max_size=world))
    fitted = all_gather_matmul.fit(name, world=world, M=parts, N=n, K=k)
    Sizes.of(all_gather_matmul.bind(fitted), world, {"M": parts, "N": n, "K": k})
    for role, was in all_gather_matmul.schedule(name).items():
        assert all(16 <= a <= b for a, b in zip(fitted[role].tile, was.tile, strict=True))
