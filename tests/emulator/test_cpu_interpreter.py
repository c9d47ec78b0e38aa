import inspect
import threading

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import interpreter as stock
from triton.runtime.jit import JITFunction

from tests.programs import kernels
from tilelink.emulator import Execution, KernelError, Region, interpreted
from tilelink.emulator.interpreter import suspended
from tilelink.errors import WorldError


def _state() -> list[dict]:
    """Everything of Triton that a run patches."""
    owners = [tl, tl.core, tl.math, tl.tensor, tl.dtype, stock, stock.InterpreterBuilder, JITFunction,
              stock.interpreter_builder, stock.ReduceScanOpInterface, stock.InterpretedFunction]  # fmt: skip
    return [dict(vars(owner)) for owner in owners]


def _copy(source: torch.Tensor, target: torch.Tensor, kernel=kernels.copy) -> None:
    execution = Execution(1)
    regions = [Region("source", 0, source), Region("target", 0, target)]
    arguments = dict(source_ptr=source, target_ptr=target, N=source.numel())
    execution.run(lambda rank: execution.launch(interpreted(kernel), 1, arguments, regions, rank))


def _fail() -> None:
    execution = Execution(1)
    x = torch.ones(1)
    execution.run(
        lambda rank: execution.launch(interpreted(kernels.failing), 1, dict(x_ptr=x), [Region("x", 0, x)], rank)
    )


def _identical(before: list[dict], after: list[dict]) -> bool:
    grid = {"grid_idx", "grid_dim"}  # which program runs: state, not a patch
    return all(
        {key: id(value) for key, value in old.items() if key not in grid}
        == {key: id(value) for key, value in new.items() if key not in grid}
        for old, new in zip(before, after, strict=True)
    )


@pytest.mark.versions
def test_nothing_stays_patched():
    _copy(torch.ones(4), torch.zeros(4))  # Triton's own restoring leaves inherited attributes in classes, once
    globals_before = set(kernels.__dict__), set(inspect.getmodule(tl.sum.fn).__dict__)
    before = _state()
    _copy(torch.ones(4), torch.zeros(4))
    assert _identical(before, _state())
    with pytest.raises(KernelError):
        _fail()
    assert _identical(before, _state())
    assert globals_before == (set(kernels.__dict__), set(inspect.getmodule(tl.sum.fn).__dict__))


@pytest.mark.versions
def test_kernels_still_compile_for_gpus_afterwards():
    _copy(torch.ones(4), torch.zeros(4))
    pointers = dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), "*fp16") | dict.fromkeys(
        ("gathered_ptrs", "signal_ptrs"), "*i64"
    )
    integers = dict.fromkeys(("M", "N", "K", "rank", "epoch"), "i32")
    constants = dict(WORLD=4, BM=32, BN=32, BK=32, FAULT="")
    signature = pointers | integers | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernels.gather_matmul, signature, constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert "release.add.u32" in compiled.asm["ptx"]


def test_a_kernel_may_use_variables_of_the_function_around_it():
    factor = tl.constexpr(3)

    @triton.jit
    def scaled(x):
        return x * factor

    @triton.jit
    def kernel(source_ptr, target_ptr, N: tl.constexpr):
        i = tl.arange(0, N)
        tl.store(target_ptr + i, scaled(tl.load(source_ptr + i)))

    target = torch.zeros(4)
    _copy(torch.ones(4), target, kernel)
    assert (target == 3).all()


@triton.jit(noinline=True)
def _apart(x):
    return x + 1


@triton.jit
def _calling_apart(source_ptr, target_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(target_ptr + i, tl.load(source_ptr + i) + _apart(tl.load(source_ptr)))
    tl.store(target_ptr + i, _apart(tl.load(source_ptr + i)))


@pytest.mark.versions
def test_a_function_that_is_not_inlined_takes_no_block_as_in_the_compiler():
    target = torch.zeros(4)
    with pytest.raises(KernelError, match=r":\d+: .*_apart is marked noinline, and Triton gives no block"):
        _copy(torch.ones(4), target, _calling_apart)
    assert (target == 3).all()


def test_only_one_run_at_a_time():
    def host(rank: int) -> None:
        Execution(1).run(lambda rank: None)

    with pytest.raises(WorldError, match=r"test_cpu_interpreter.py:\d+: another execution is running in this process"):
        Execution(1).run(host)
    assert Execution(1).run(lambda rank: rank) == [0]


def test_a_second_thread_leaves_a_run_as_it_is():
    refused = []

    def other() -> None:
        for enter in (suspended(), _Run()):
            try:
                with enter:
                    pass
            except WorldError as e:
                refused.append(e)

    source, target = torch.arange(4.0), torch.zeros(4)
    execution = Execution(1)
    regions = [Region("source", 0, source), Region("target", 0, target)]
    arguments = dict(source_ptr=source, target_ptr=target, N=4)

    def host(rank: int) -> None:
        before = _state()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert _identical(before, _state())
        with suspended():
            assert not _identical(before, _state())
        execution.launch(interpreted(kernels.copy), 1, arguments, regions, rank)

    execution.run(host)
    assert len(refused) == 2 and torch.equal(source, target)


class _Run:
    """A run of nothing."""

    def __enter__(self) -> None:
        Execution(1).run(lambda rank: None)

    def __exit__(self, *_: object) -> None:
        pass
