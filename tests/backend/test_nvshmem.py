"""Programs across nodes for NVIDIA GPUs, compiled and linked with NVSHMEM's bitcode. Compiled only: nothing runs."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import triton

import tilelink as tk
from tests.backend.nvshmem_gate import FENCE, PUT, PUT_SIGNAL, QUIET, SIGNAL, TEST, expected, findings
from tilelink.backend import nvshmem
from tilelink.backend.lower import Lowered, lower_at
from tilelink.backend.targets import TARGETS
from tilelink.backend.targets import nvshmem as primitives
from tilelink.errors import NvshmemError
from tilelink.frontend.passes.publish import publish_sources
from tilelink.frontend.sizes import Sizes
from tilelink.inspect.compile import Compiled, compiled
from tilelink.kernels import all_gather_matmul, matmul_reduce_scatter

ROOT = Path(__file__).parents[2]
WHEEL = ROOT / ".triton" / "nvshmem" / nvshmem.FOLDER
"""Where `make test` puts it."""
WORLD, PER_NODE, SIZES = 4, 2, {"M": 2048, "N": 512, "K": 2048}
gather = all_gather_matmul.all_gather_matmul
rows = all_gather_matmul.push.changed(gather={"tile": (64, None)})


@pytest.fixture
def bitcode(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVSHMEM's, of the wheel that make test has fetched, or that is installed."""
    if nvshmem.VARIABLE not in os.environ and WHEEL.is_dir():
        monkeypatch.setenv(nvshmem.VARIABLE, str(WHEEL))
    try:
        nvshmem.bitcode(90)
    except NvshmemError as e:
        pytest.skip(f"no NVSHMEM wheel, and none could be fetched: {e}")


def across_nodes(program: Any, schedule: tk.Schedule, arch: str = "sm_90") -> tuple[Lowered, Sizes]:
    bound = publish_sources(program.bind(schedule, "bf16"))
    sizes = Sizes.of(bound, WORLD, SIZES, PER_NODE)
    return lower_at(bound, sizes, TARGETS[arch].across_nodes()), sizes


def judged(program: Any, schedule: tk.Schedule, arch: str = "sm_90") -> Compiled:
    """The main kernel, which the gates have nothing to say about."""
    lowered, sizes = across_nodes(program, schedule, arch)
    *_, main = compiled(lowered, sizes)
    assert findings(lowered, main.ttgir, main.code) == []
    assert main.spill_bytes == 0 and main.warnings == ()
    assert main.shared_bytes <= (lowered.target.shared_bytes or 0)
    return main


@pytest.mark.usefixtures("bitcode")
class TestGate:
    """With mutants of the compiled kernel, which it has to find."""

    @pytest.mark.verify  # linking the bitcode takes longer than any other test
    def test_rows_are_put_with_their_signal(self) -> None:
        main = judged(gather, rows)
        assert main.ttgir.count(PUT_SIGNAL) == 1 and PUT not in main.ttgir
        assert "wgmma" in main.code
        lowered, _ = across_nodes(gather, rows)

        def gate(change: Callable[[str], str], ptx: str = main.code) -> str:
            changed = change(main.ttgir)
            assert changed != main.ttgir or ptx != main.code
            return "; ".join(findings(lowered, changed, ptx))

        def without(name: str) -> Callable[[str], str]:
            return lambda t: re.sub(rf"\n[^\n]*symbol = \"{name}\"[^\n]*", "", t, count=1)

        assert "puts: the program says 1, found 0; signals: the program says 3" in gate(without(PUT_SIGNAL))
        assert "signals: the program says 3, found 2" in gate(without(SIGNAL))
        assert "2 signals without a put have 1 fences before them" in gate(without(FENCE))
        assert "tests: the program says 1, found 0" in gate(without(TEST))
        assert f"{FENCE} is called by every thread" in gate(lambda t: t.replace("%tid.x", "%ctaid.x"))
        assert f"{PUT_SIGNAL}: 1 calls, but 0 of" in gate(str, main.code.replace("nvshmemi_transfer_put_signal", "f"))
        assert "bitcode is not linked in" in gate(str, main.code.replace(nvshmem.STATE, "state"))

    def test_numbers_are_those_of_the_headers(self) -> None:
        headers = nvshmem.bitcode(90).parents[1] / "include" / "device_host_transport"
        comparisons = re.search(r"\{([^{}]*NVSHMEM_CMP_EQ[^{}]*)\}", (headers / "nvshmem_constants.h").read_text())
        assert comparisons is not None
        names = [line.split("=")[0].strip() for line in comparisons[1].split(",")]
        assert names.index("NVSHMEM_CMP_GE") == primitives.AT_LEAST.value and names[0] == "NVSHMEM_CMP_EQ"
        signals = (headers / "nvshmem_common_transport.h").read_text()
        assert f"NVSHMEM_SIGNAL_ADD = {primitives.ADD.value} " in signals

    @pytest.mark.verify
    def test_rows_cross_to_each_node_once(self, example: Callable[[str], Any]) -> None:
        """Whoever is told may be on another node than where the rows went: after they have arrived. Inside a node
        nothing but loads and stores."""
        module = example("hierarchical_gather")
        main = judged(module.hierarchical_all_gather_matmul, module.relayed)
        assert main.ttgir.count(f'"{QUIET}"') == 1

    @pytest.mark.verify
    def test_multicast_inside_nodes(self) -> None:
        """Near ranks add to the first word of a signal all at once, of 64 bits; rows cross with theirs."""
        main = judged(gather, all_gather_matmul.multicast.changed(gather={"tile": (64, None)}))
        assert main.ttgir.count(PUT_SIGNAL) == 1
        assert "multimem.st.relaxed.sys.global.v4.f32" in main.code
        assert "multimem.red.release.sys.global.add.u64" in main.code

    @pytest.mark.verify
    @pytest.mark.parametrize("name", ["push", "pull", "multicast"])
    def test_schedules(self, name: str) -> None:
        judged(gather, getattr(all_gather_matmul, name))

    @pytest.mark.verify
    def test_blocks_from_registers(self) -> None:
        judged(matmul_reduce_scatter.matmul_reduce_scatter, matmul_reduce_scatter.fused)

    @pytest.mark.verify
    def test_blackwell(self) -> None:
        judged(gather, rows, "sm_100")


def test_what_is_expected_follows_from_the_program() -> None:
    def of(program: Any, schedule: tk.Schedule) -> dict[str, int]:
        return dict(expected(across_nodes(program, schedule)[0]))

    assert of(gather, rows) == {"signals": 3, "puts": 1, "tests": 1}
    pull = all_gather_matmul.pull.changed(gather={"tile": (128, 256)})
    assert of(gather, pull) == {"signals": 2, "gets": 1}, "its signals stay on their rank"
    fused = of(matmul_reduce_scatter.matmul_reduce_scatter, matmul_reduce_scatter.fused)
    # the late signal is given in a tile, and behind the last one
    assert fused == {"signals": 4, "puts": 1, "completions": 1, "tests": 1}


def test_programs_on_one_node_have_none_of_it() -> None:
    bound = gather.bind(rows, "bf16")
    source = lower_at(bound, Sizes.of(bound, WORLD, SIZES), TARGETS["sm_90"]).source
    assert not re.search(r"\b(is_far|put_far|put_notify_far|notify_far|fetch_far|complete_far)\(", source)
    assert nvshmem.libraries(TARGETS["sm_90"]) == {} == nvshmem.libraries(TARGETS["cpu"].across_nodes())


# ---- the libraries


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Of a wheel that is unpacked somewhere, without its bitcode."""
    made = tmp_path / nvshmem.FOLDER
    made.mkdir(parents=True)
    monkeypatch.setenv(nvshmem.VARIABLE, str(made))
    return made


def test_bitcode_for_each_architecture_comes_before_the_one_for_all(folder: Path) -> None:
    (folder / "libnvshmem_device.bc").touch()
    assert nvshmem.bitcode(90).name == "libnvshmem_device.bc"
    (folder / "libnvshmem_device_sm_90.bc").touch()
    assert nvshmem.bitcode(90).name == "libnvshmem_device_sm_90.bc"
    linked = nvshmem.libraries(TARGETS["sm_90"].across_nodes())
    assert linked == {"libnvshmem_device": str(folder / "libnvshmem_device_sm_90.bc")}


def test_no_bitcode_for_an_architecture(folder: Path) -> None:
    (folder / "libnvshmem_device_sm_90.bc").touch()
    with pytest.raises(NvshmemError, match=r"has no bitcode for sm_100, only libnvshmem_device_sm_90.bc: NVSHMEM"):
        nvshmem.bitcode(100)


def test_bitcode_that_an_older_triton_can_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "libnvshmem_device_sm_90.bc").touch()
    (folder.parents[2] / "nvidia_nvshmem_cu12-3.8.0.dist-info").mkdir()
    monkeypatch.setattr(triton, "__version__", "3.7.1")
    nvshmem.bitcode(90)
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    with pytest.raises(NvshmemError, match=r"NVSHMEM 3.8.0 in .* can't be read by Triton 3.6.0: use NVSHMEM 3.4.5"):
        nvshmem.bitcode(90)


def test_no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(nvshmem.VARIABLE, "/nowhere")
    with pytest.raises(NvshmemError, match=r"TILELINK_NVSHMEM=/nowhere: no such file or folder"):
        nvshmem.bitcode(90)
    monkeypatch.delenv(nvshmem.VARIABLE)

    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    lowered, sizes = across_nodes(gather, rows)
    with pytest.raises(NvshmemError, match=r"a world that spans nodes needs NVSHMEM: pip install tilelink\[nvshmem\]"):
        compiled(lowered, sizes)


# ---- kernels that are loaded


def test_nvshmem_is_told_of_its_kernels_and_of_no_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[int] = []

    class Library:
        status = 0

        def nvshmemx_cumodule_init(self, module: Any) -> int:
            told.append(module.value)
            return self.status

    monkeypatch.setattr(nvshmem, "host_library", Library)
    files = {}
    for name, text in (("with", f".visible .const {nvshmem.STATE}[776];"), ("without", ".visible .entry f")):
        (tmp_path / name).write_text(text)
        files[name] = {"f.ptx": str(tmp_path / name), "f.json": "/nowhere"}
    hook = triton.knobs.runtime.kernel_load_end_hook
    before = list(hook.calls)
    try:
        nvshmem.initialise_kernels()
        nvshmem.initialise_kernels()
        hook(5, None, "f", files["with"], "hash")
        hook(6, None, "f", files["without"], "hash")
        assert told == [5]
        Library.status = 7
        with pytest.raises(NvshmemError, match=r"could not initialise kernel f: nvshmemx_cumodule_init returned 7"):
            hook(5, None, "f", files["with"], "hash")
    finally:
        for added in set(hook.calls) - set(before):
            hook.remove(added)


def test_a_process_that_has_not_loaded_nvshmem() -> None:
    if nvshmem.HOST in Path("/proc/self/maps").read_text():
        pytest.skip("this torch is built for CUDA, and has loaded NVSHMEM")
    with pytest.raises(NvshmemError, match=r"libnvshmem_host.so.3 is not loaded in this process: first make the world"):
        nvshmem.host_library()


def test_nothing_happens_at_import() -> None:
    code = (
        "import tilelink, tilelink.backend.nvshmem, triton; "
        "assert not triton.knobs.runtime.kernel_load_end_hook.calls; "
        "assert 'libnvshmem' not in open('/proc/self/maps').read()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
