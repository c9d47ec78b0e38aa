"""The gates: they find nothing in what the lowering makes, and something in all that one thing was taken out of."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tilelink as tk
from tests.backend.edited import in_function, replaced, written_out
from tests.backend.small_programs import Made, lowered, small, verdict
from tests.modules import importable, text_of
from tests.programs import multiplied
from tests.programs.attention import gathered_attention
from tests.programs.gathered import corner
from tests.programs.ring_maximum import ring_maximum
from tests.verification.mutants.tools import Edit
from tilelink.backend.targets import TARGETS
from tilelink.inspect.compile import compiled
from tilelink.inspect.gates import judge
from tilelink.kernels.all_gather_matmul import all_gather_matmul

pytestmark = pytest.mark.usefixtures("own_cache")
GPUS = ["sm_90", pytest.param("sm_100", marks=pytest.mark.verify), pytest.param("gfx942", marks=pytest.mark.verify)]


@pytest.fixture
def primitives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Made, Edit], Made]:
    """Makes a program use an edited copy of its target's primitives."""

    monkeypatch.syspath_prepend(str(tmp_path))

    def make(made: Made, edit: Edit) -> Made:
        lowered, sizes = made
        name = importable(tmp_path, edit(text_of(lowered.target.module)))
        edited = lowered.source.replace(lowered.target.module, name)
        return replace(lowered, source=edited, target=replace(lowered.target, module=name)), sizes

    return make


OF_ENGINE = ("fence", "bulk", "complete")
"""What kernels do where a chip has a copy engine for tiles."""


@pytest.mark.parametrize("target", [
    pytest.param("sm_90", marks=pytest.mark.versions),
    *(pytest.param(t, marks=[pytest.mark.versions, pytest.mark.verify]) for t in ("sm_100", "gfx942")),
    *(pytest.param(t, marks=pytest.mark.verify) for t in ("sm_80", "sm_103", "sm_120")),
])  # fmt: skip
def test_nothing_is_found_in_what_the_lowering_makes(target: str) -> None:
    found = verdict(lowered(target, "pull"))
    assert found.findings == ()
    assert found.expected == found.found
    assert min(n for kind, n in found.found.items() if kind not in OF_ENGINE) > 0
    assert {found.found[kind] > 0 for kind in OF_ENGINE} == {TARGETS[target].descriptors}


IN_KERNEL: list[tuple[str, str, Edit, str]] = [
    ("wait", "push", replaced(r"rows_ready \+= wait\(.*\)", "rows_ready = 0"), "acquire"),
    ("notify", "push", replaced(r"^( +)notify\(.*\n", ""), "release"),
    ("credit", "push", replaced(r"^ +credit\(.*\n", ""), "acquire"),
    ("enter", "push", replaced(r"^ +if worker == 0:\n +enter\(.*\n", ""), "release"),
    ("entered", "pull", replaced(r"= entered\(.*\)", "= 0"), "acquire"),
    ("last_out", "push", replaced(r"if last_out\(.*\):", "if worker == 0:"), "acquire"),
    ("drain", "push", replaced(r"^ +drain_full\(.*\n", ""), "acquire"),
    ("leave", "push", replaced(r"^ +leave\(.*\n", ""), "release"),
    ("dot", "push", replaced(r"acc = tl.dot\(.*\)", "acc += 1"), "mma"),
    ("token", "push", replaced(r" \+ rows_ready\b", ""), "guarded"),
    ("stored in bulk", "push", replaced(r"^( +)full_there\.store\(.*\n", r"\1pass\n"), "bulk"),
    ("complete", "push", replaced(r", bulk=True", ""), "complete"),
    ("fence of credit", "push", replaced(r"(credit\(.*), tma=True", r"\1"), "fence"),
    ("fence of entered", "pull", replaced(r"(entered\(.*), tma=True", r"\1"), "fence"),
    ("scope", "push", replaced(r'(rows_ready \+= wait\(.*)"sys"', r'\1"gpu"'), "scopes"),
]  # fmt: skip


def repeats(cases: list[tuple[str, str, Edit, str]]) -> list[bool]:
    """Which cases have the finding of one before: `make verify` has these. What names a line is no kind of finding."""
    kinds = [kind for *_, kind in cases]
    return [kind in kinds[:k] and ":" not in kind for k, kind in enumerate(kinds)]


@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize(
    ("what", "schedule", "edit", "kind"),
    [
        pytest.param(*case, marks=pytest.mark.verify if again else ())
        for case, again in zip(IN_KERNEL, repeats(IN_KERNEL), strict=True)
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_one_call_less_is_found(what: str, schedule: str, edit: Edit, kind: str, target: str) -> None:
    if kind in OF_ENGINE and not TARGETS[target].descriptors:
        assert verdict(lowered(target, schedule)).expected[kind] == 0, "a chip without the engine has nothing to lose"
        return
    assert any(f.startswith(kind) for f in verdict(lowered(target, schedule), edit).findings)


@pytest.mark.parametrize(
    ("program", "schedule", "target"),
    [
        ("sum_of_squares", "in_blocks", "sm_90"),
        ("sum_of_integers", "one_warp", "gfx942"),  # barriers of one wave are left out
        pytest.param("sum_of_integers", "many_warps", "gfx942", marks=pytest.mark.verify),
        pytest.param("sum_of_integers", "many_warps", "sm_90", marks=pytest.mark.verify),
        ("products", "side_by_side", "sm_90"),
        pytest.param("products", "side_by_side", "gfx942", marks=pytest.mark.verify),
    ],
)
def test_parts_of_a_dot_and_warps_that_do_the_same_count_once(program: str, schedule: str, target: str) -> None:
    sizes = {"M": 64, "N": 32, "K": 32, "B": 2, "E": 128, "H": 32}
    dtypes = "int8" if "integers" in program else "bfloat16"
    made: Any = getattr(multiplied, program)
    dims = {d for t in made.recorded().tensors for d in t.dims}
    at = {d: n for d, n in sizes.items() if d in dims}
    found = verdict(made.lowered_at(schedule, target=TARGETS[target], world=2, sizes=at, dtypes=dtypes))
    assert found.findings == () and found.found["mma"] > 0


def test_a_read_depends_on_each_of_the_words_that_guard_it() -> None:
    """Of two signals that one wait is for."""
    tiles = tk.Schedule(gather_kv=tk.SMs(2, tile=(16,), at="home"), attend=tk.SMs(tile=(16, 16, 16)))
    sizes = {"S": (32, 32), "D": 16}
    made = gathered_attention.lowered_at(tiles, target=TARGETS["sm_90"], world=2, sizes=sizes)
    assert not [f for f in verdict(made).findings if f.startswith("guarded")]
    one_less = verdict(made, replaced(r"(\w+_ready_0) \+ \w+_ready_1", r"\1"))
    assert "guarded: the program says 2 acquired words, found 1" in one_less.findings


@pytest.mark.parametrize("target", GPUS)
def test_a_read_of_one_element_depends_on_its_wait(target: str) -> None:
    tiles = tk.Schedule(gather=tk.SMs(1, tile=(16, 16), at="home"), add_corner=tk.SMs(1, tile=(16, 16)))
    made = corner.lowered_at(tiles, target=TARGETS[target], world=2, sizes={"M": 32, "K": 16})
    found = verdict(made)
    assert found.found["guarded"] == found.expected["guarded"] == 2
    assert not [f for f in found.findings if f.startswith("guarded")]
    one_less = verdict(made, replaced(r"tl.cast\(0 \+ rows_ready, tl.int64\)", "0"))
    assert "guarded: the program says 2, found 1" in one_less.findings


def without(function: str, line: str) -> Edit:
    """A line less in a function."""
    return in_function(function, rf"^ +{line}.*\n?", "")


BARRIER = r"tl.debug_barrier\(\)"
ACQUIRE = r"ld.acquire.\{scope\}.global.s\{bits\} %word, \[\{own_word\}\]"
PTX: list[tuple[str, str, Edit, str]] = [
    ("barrier of notify", "push", without("notify", BARRIER), "barrier"),
    ("barrier of credit", "push", without("credit", BARRIER), "barrier"),
    ("barrier of drain", "push", without("drain", BARRIER), "barrier"),
    ("barrier of leave", "push", written_out("leave", without("leave", BARRIER)), "barrier"),
    ("release of notify", "push", in_function("notify", "red.release", "red.relaxed"), "release"),
    ("release of enter and leave", "push", in_function("tell", "fence.acq_rel.sys;", "nanosleep.u32 1;"), "release"),
    ("fence", "push", in_function("wait", '"one", tma', '"one", False'), "fence"),
    ("complete for who reads alone", "push", in_function("_complete", "wait_group 0", "wait_group.read 0"), "complete"),
    ("complete behind the barrier", "push",
     in_function("notify", rf"^( +if bulk:\n.*\n)( +{BARRIER}\n)", r"\2\1"), "all_gather_matmul: line"),
    ("token", "push", in_function("_until", r"return _zero\((.*)\)", r"\1\n    return 0"), "guarded"),
    ("width", "push", in_function("notify", "bitwidth == 64", "bitwidth != 64"), "all_gather_matmul: signal"),
    ("store after the barrier", "push",
     written_out("leave", in_function("leave", rf"^( +tl.store\(control \+ RUN.*\n)( +{BARRIER}\n)", r"\2\1")),
     "all_gather_matmul: line"),
    ("barrier of drain after the zeros", "push",
     in_function("drain", rf"^( +{BARRIER}\n)((?:.*\n)*.*)$", r"\2\n\1"), "all_gather_matmul: line"),
    ("barrier of wait_all before the polls", "few",
     in_function("wait_all", rf"^( +seen = .*\n)( +{BARRIER}\n)", r"\2\1"), "all_gather_matmul: line"),
    ("barrier after the release", "push",
     in_function("notify", rf"^( +{BARRIER}\n)((?:.*\n)+)(.*)$", r"\2\3\n\1"), "all_gather_matmul: line"),
]  # fmt: skip
GCN: list[tuple[str, str, Edit, str]] = [
    ("acquire", "push", in_function("wait", '"buffer_inv " \\+ _reach\\(scope\\)', '""'), "acquire"),
    ("poll", "push", in_function("wait", r"^ +while .*\n +pass\n", ""), "poll"),
    ("stores before notify", "push", without("notify", r"_stored\(scope\)"), "all_gather_matmul: line"),
    ("stores before leave", "push", without("leave", r"_stored\("), "all_gather_matmul: line"),
    ("stores before the ticket", "push", without("last_out", r"_stored\("), "all_gather_matmul: line"),
    ("stores written back for this chip", "push", in_function("notify", r"_stored\(scope\)", '_stored("gpu")'),
     "all_gather_matmul: line"),
    ("stores not yet written back", "push", in_function("_stored", r'back \+ "\\ns_waitcnt vmcnt\(0\)', 'back + "'),
     "all_gather_matmul: line"),
    ("token", "push", in_function("wait", "return tl.inline_asm.*", "return 0"), "guarded"),
    ("barrier of credit", "push", written_out("credit", without("credit", BARRIER)), "barrier"),
]  # fmt: skip


def cases() -> list[Any]:
    def case(target: str, case: tuple[str, str, Edit, str], *marks: Any) -> Any:
        return pytest.param(target, *case[1:], marks=marks, id=f"{target} {case[0]}")

    verify = pytest.mark.verify
    again = repeats([*IN_KERNEL, *PTX])[len(IN_KERNEL) :]
    return [
        *(case("sm_90", c, *[verify][: int(a)]) for c, a in zip(PTX, again, strict=True)),
        *(case("sm_100", c, verify) for c in PTX),
        *(case("gfx942", c, *[verify][: n > 1]) for n, c in enumerate(GCN)),
    ]


@pytest.mark.parametrize(("target", "schedule", "edit", "kind"), cases())
def test_one_instruction_less_is_found(
    target: str, schedule: str, edit: Edit, kind: str, primitives: Callable[[Made, Edit], Made]
) -> None:
    assert any(f.startswith(kind) for f in verdict(primitives(lowered(target, schedule), edit)).findings)


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (r"^ +@%p bra POLL_\$\{\{:uid\}\};\n", "", "poll"),
        *(
            pytest.param(*case, marks=pytest.mark.verify)  # with findings that every run has
            for case in (
                (r"^ +ld\.acquire\.\{scope\}\.global\.s\{bits\} %word, \[\{own_word\}\];\n", "", "acquire"),
                (r"^ +bar\.warp\.sync 0xffffffff;\n", "", "poll"),
            )
        ),
    ],
)
def test_a_poll_with_an_instruction_less_is_found(
    old: str, new: str, kind: str, primitives: Callable[[Made, Edit], Made], tmp_path: Path
) -> None:
    from tilelink.backend.targets import polling

    assert polling.__file__ is not None
    (tmp_path / "edited_polling.py").write_text(replaced(old, new)(Path(polling.__file__).read_text()))
    sys.modules.pop("edited_polling", None)
    made = primitives(lowered("sm_90"), replaced(r"tilelink\.backend\.targets\.polling", "edited_polling"))
    assert any(f.startswith(kind) for f in verdict(made).findings)


def test_spills_memory_and_narrow_copies_are_found() -> None:
    made, sizes = lowered("sm_90")
    (kernel,) = compiled(made, sizes)
    spilling = replace(kernel, spill_bytes=8, shared_bytes=300_000, warnings=("C7511: wgmma is serialised",))
    findings = judge(made, (spilling,)).findings
    assert [f.split(": ", 1)[1] for f in findings] == [
        "8 bytes of registers are spilled",
        "300000 bytes of shared memory; sm_90 has 232448",
        "the assembler says: C7511: wgmma is serialised",
    ]
    by_threads = all_gather_matmul.schedule("push").changed(gather={"via": "load-store"})
    made, sizes = small("sm_90", all_gather_matmul, by_threads)
    (kernel,) = compiled(made, sizes)
    narrow = kernel.code.replace("ld.global.v4.b32", "ld.global.v2.b32")
    assert narrow != kernel.code
    findings = judge(made, (replace(kernel, code=narrow),)).findings
    assert findings and all(re.search(r"line \d+: copies 8 bytes at a time", f) for f in findings)


def test_what_gets_lost_between_ttgir_and_machine_code_is_found() -> None:
    made, sizes = lowered("sm_90")
    (kernel,) = compiled(made, sizes)
    lost = replace(kernel, code=re.sub(r"red\.release", "red.relaxed", kernel.code))
    assert any("release: " in f and "in the machine code" in f for f in judge(made, (lost,)).findings)


def test_what_finds_the_next_tile_is_not_guarded() -> None:
    """A tile of pieces begins in the loop that waits for the pieces of the tile before it."""
    made = small("sm_90", all_gather_matmul, "pieces", M=(100, 60, 64, 32))
    assert "tl.load(M_parts" in made[0].source and verdict(made).findings == ()


def test_a_loop_that_one_rank_leaves_out_is_not_missed() -> None:
    made = ring_maximum.lowered_at(target=TARGETS["sm_90"], world=1, sizes={"T": 64, "D": 64}, dtypes="float32")
    assert verdict(made).findings == ()


@pytest.mark.verify
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_a_branch_that_one_rank_leaves_out_is_not_missed(target: str, example: Callable[[str], ModuleType]) -> None:
    program = example("hierarchical_gather").hierarchical_all_gather_matmul
    sizes = {"M": 256, "N": 256, "K": 256}
    assert verdict(program.lowered_at(target=TARGETS[target], world=1, sizes=sizes, dtypes="bfloat16")).findings == ()
