"""Names of a program's dimensions and roles, and of the members of its lists: nearly all may be called anything."""

from __future__ import annotations

import ast
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest
import torch

from tests.frontend.wrong import load
from tests.kernels.gather_gemm import small_world
from tilelink.backend.parameters import OF_TRITON
from tilelink.backend.targets import TARGETS
from tilelink.errors import ArgumentError, DimensionError, NotUnderstoodError, ScheduleError
from tilelink.inspect.compile import each_compiled

SOURCE = """
@tk.tile
def put(t, x, out):
    out[t].store(x[t].load())


ROLE = put.named("put")


@tk.program
def program(x: tk.Local("M", "K"), out: tk.Local("M", "K")):
    ROLE[tk.tiles(out)](x, out)


schedule = tk.Schedule(**{"put": tk.SMs(tile=(16, 16))})
"""
LISTS = """
@tk.tile
def put(t, x, out):
    tk.copy(x[t], out[t])


@tk.program
def program(w: tk.Each(tk.Local("M", "N")), TENSOR: tk.Local("M", "K"), out: tk.Each(tk.Local("M", "N"))):
    for a, b in tk.each(w, out):
        put[tk.tiles(b)](a, b)


schedule = tk.Schedule(put=tk.SMs(tile=(16, 16)))
"""


SIZES = ["np", "np_1", "Ä", "\ufb01", "for", "__M", "values", "world", "budget", "self", "sizes", "x"]
ROLES = ["for", "__put", "program", "x", "self", "program_publish"]


@pytest.mark.parametrize(("old", "name"), [*(('"M"', n) for n in SIZES), *(('"put"', n) for n in ROLES)])
def test_a_dimension_or_a_role_may_be_called_so(old: str, name: str, tmp_path: Path) -> None:
    module = load(tmp_path, SOURCE.replace(old, f'"{name}"'))
    sizes = {name if old == '"M"' else "M": 40, "K": 20}
    assert module.program.check(module.schedule, world=2, sizes=sizes).verdict == "safe"
    x = torch.randn(40, 20)
    (out,) = small_world(1).run(lambda group: module.program(x, schedule=module.schedule, group=group))
    assert torch.equal(out, x)


@pytest.mark.parametrize("name", ["_", "größe", pytest.param("Ä", marks=pytest.mark.verify), "p" * 300])
def test_a_program_may_be_called_so(name: str, tmp_path: Path) -> None:
    """Its kernel has a name that assemblers and file systems take."""
    module = load(tmp_path, SOURCE.replace("def program(", f"def {name}("))
    program, x = getattr(module, name), torch.randn(40, 20)
    (out,) = small_world(1).run(lambda group: program(x, schedule=module.schedule, group=group))
    assert torch.equal(out, x)
    lowered = program.lowered_at(module.schedule, target=TARGETS["sm_90"], world=1, sizes={"M": 40, "K": 20})
    (compiled,) = each_compiled([lowered], lambda _, kernels: kernels)
    assert isinstance(compiled, tuple), compiled


def test_two_dimensions_that_python_takes_for_one(tmp_path: Path) -> None:
    """In source, a ligature is its letters."""
    module = load(tmp_path, SOURCE.replace('"M"', '"\ufb01"').replace('"K"', '"fi"'))
    x = torch.randn(40, 20)
    (out,) = small_world(1).run(lambda group: module.program(x, schedule=module.schedule, group=group))
    assert torch.equal(out, x)


@pytest.mark.parametrize("name", ["a b", "3", "put[0]", ""])
def test_names_that_are_none(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotUnderstoodError, match="a role's name has letters, digits and _"):
        load(tmp_path, SOURCE.replace('"put"', f'"{name}"'))
    if name != "put[0]":
        with pytest.raises(DimensionError, match="must be the name of a dimension"):
            load(tmp_path, SOURCE.replace('"M"', f'"{name}"'))


OPTIONS = ["self", "grid", "warmup", "stream", "device", "debug", "num_warps", "arch"]


def test_two_dimensions_of_a_tensor_need_two_names(tmp_path: Path) -> None:
    with pytest.raises(DimensionError, match=r"\('M', 'M'\) are 'M': give each dimension its own name, also if"):
        load(tmp_path, SOURCE.replace('x: tk.Local("M", "K")', 'x: tk.Local("M", "M")'))


@pytest.mark.parametrize("name", OPTIONS)
def test_a_kernel_has_no_parameter_that_is_called_like_an_option_of_triton(name: str, tmp_path: Path) -> None:
    """Triton's `warmup` takes such an argument for the option, on every target but the CPU."""
    module = load(tmp_path, SOURCE.replace("x: tk.Local", f"{name}: tk.Local").replace("(x, out)", f"({name}, out)"))
    source = module.program.show("triton", module.schedule, world=2, M=40, K=20)
    named = {a.arg for f in ast.walk(ast.parse(source)) if isinstance(f, ast.FunctionDef) for a in f.args.args}
    assert f"{name}_1" in named and name not in named


@pytest.mark.versions
@pytest.mark.parametrize("compiler", ["nvidia.compiler.CUDAOptions", "amd.compiler.HIPOptions"])
def test_all_options_of_triton_are_known(compiler: str) -> None:
    module, options = compiler.rsplit(".", 1)
    assert {f.name for f in fields(getattr(import_module(f"triton.backends.{module}"), options))} <= {*OF_TRITON}


def test_results_lie_as_they_are_declared(tmp_path: Path) -> None:
    module = load(tmp_path, SOURCE.replace('out: tk.Local("M", "K")', 'out: tk.Local("M", "K", contiguous="M")'))
    x = torch.randn(40, 20)
    (out,) = small_world(1).run(lambda group: module.program(x, schedule=module.schedule, group=group))
    assert torch.equal(out, x) and out.stride() == (1, 40)
    assert "output out: float32[M, K], M contiguous" in str(module.program.bind())


def test_what_is_contiguous_is_a_dimension_of_the_tensor(tmp_path: Path) -> None:
    with pytest.raises(DimensionError, match=r"contiguous='N' is not one of the dimensions \('M', 'K'\)"):
        load(tmp_path, SOURCE.replace('out: tk.Local("M", "K")', 'out: tk.Local("M", "K", contiguous="N")'))
    with pytest.raises(DimensionError, match=r"contiguous='N' is not one of the dimensions \('M', 'K'\)"):
        load(tmp_path, SOURCE.replace('x: tk.Local("M", "K")', 'x: tk.Sharded("M", "K", contiguous="N")'))


@pytest.mark.parametrize(("tensor", "dim"), [("w_1", "K"), ("v", "N_1")])
def test_what_is_called_like_a_member_is_refused(tensor: str, dim: str, tmp_path: Path) -> None:
    module = load(tmp_path, LISTS.replace("TENSOR", tensor).replace('"K"', f'"{dim}"'))
    clash = tensor if tensor == "w_1" else dim
    with pytest.raises(ArgumentError, match=f"program: {clash} is the name of . of one of 2 members"):
        module.program.of(2)
    assert module.program.of(1) is module.program


def test_a_schedule_with_a_role_called_much_like_one_of_the_program_is_named(tmp_path: Path) -> None:
    module = load(tmp_path, SOURCE.replace('{"put": tk', '{"putt": tk'))
    with pytest.raises(ScheduleError, match=r"schedule names putt, which is no role; did you mean put\?"):
        module.program.schedule(None)
