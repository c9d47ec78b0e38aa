"""A gate for programs across nodes: the operations of NVSHMEM in compiled kernels, against what the program says. No
command compiles such programs, so it stands beside the tests that do.

They are counted in TTGIR, where each stands once, and looked for in the PTX, where the bitcode is linked in. Which of
its functions stands for a put is the lowering's choice: every one has to be there, every signal has to be behind a
fence or go with its put, and what one thread has to call has to be called by one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from tilelink.backend.far import may_be_far
from tilelink.backend.lower import Lowered
from tilelink.backend.nvshmem import STATE
from tilelink.backend.reach import OTHER
from tilelink.frontend.cells import recipient
from tilelink.frontend.ir import ALL_RANKS, Copy, Notify, Role, Store, View, Wait, walk

PUT, PUT_SIGNAL, GET = "nvshmemx_putmem_nbi_block", "nvshmemx_putmem_signal_nbi_block", "nvshmemx_getmem_block"
SIGNAL, FENCE, QUIET, TEST = "nvshmemx_signal_op", "nvshmem_fence", "nvshmem_quiet", "nvshmem_uint64_test"
ONE_THREAD = frozenset([SIGNAL, FENCE, QUIET, TEST])
INSIDE = {
    PUT: "nvshmemi_transfer_rma_nbi",
    PUT_SIGNAL: "nvshmemi_transfer_put_signal",
    GET: "nvshmemi_transfer_rma",
    SIGNAL: "nvshmemi_transfer_amo_nonfetch",
    FENCE: "nvshmemi_transfer_fence",
    QUIET: "nvshmemi_transfer_quiet",
    TEST: "nvshmemi_transfer_syncapi_update_mem",
}
"""What a function calls in the bitcode to get to the network."""


def expected(lowered: Lowered) -> Counter[str]:
    """How many "puts", "gets", "signals", "completions" and "tests" of signals the kernel of a program has."""
    program, facts = lowered.program, lowered.facts
    count = Counter({"signals": 2})  # of entering and of leaving
    for role in program.roles:
        for s in walk(role.body):
            if isinstance(s, Copy | Store) and may_be_far(role, s.target.home, facts):
                count.update(["puts", "completions"] if isinstance(s, Store) else ["puts"])
            elif isinstance(s, Copy) and may_be_far(role, s.source.home, facts):
                count["gets"] += 1
            elif isinstance(s, Wait):
                count["tests"] += sum(program.signals_of(v.tensor).scope == "sys" for v in s.views)
            elif isinstance(s, Notify):
                for view in s.views:  # a late one is given in a tile, and behind the last one
                    count.update(_of_notification(lowered, role, view) * (1 + s.late))
    return +count


def _of_notification(lowered: Lowered, role: Role, view: View) -> list[str]:
    home = OTHER if view.home == ALL_RANKS else view.home
    assert not isinstance(home, str) and home is not None
    to, _ = recipient(lowered.program.signals_of(view.tensor), view, home)
    made = ["completions"] if to != home and may_be_far(role, view.home, lowered.facts) else []
    return [*made, "signals"] if may_be_far(role, to, lowered.facts) else made


def found(ttgir: str) -> Counter[str]:
    """How many of them there are in a compiled kernel."""
    calls = Counter(re.findall(r'tt\.extern_elementwise.*symbol = "(\w+)"', ttgir))
    return +Counter(
        puts=calls[PUT] + calls[PUT_SIGNAL],
        gets=calls[GET],
        signals=calls[SIGNAL] + calls[PUT_SIGNAL],
        completions=calls[QUIET],
        tests=calls[TEST],
    )


def findings(lowered: Lowered, ttgir: str, ptx: str) -> list[str]:
    """What is wrong with the main kernel of a program across nodes, in words; nothing, if all is well."""
    wanted, there = expected(lowered), found(ttgir)
    differing = sorted(k for k in wanted | there if wanted[k] != there[k])
    wrong = [f"{k}: the program says {wanted[k]}, found {there[k]}" for k in differing]
    calls = Counter(re.findall(r'tt\.extern_elementwise.*symbol = "(\w+)"', ttgir))
    if calls[FENCE] != calls[SIGNAL]:
        wrong.append(f"{calls[SIGNAL]} signals without a put have {calls[FENCE]} fences before them")
    wrong += [f"{name} is called by every thread" for name in sorted(set(_by_all_threads(ttgir.splitlines())))]
    for name, number in calls.items():
        inside = len(re.findall(rf"\bcall\.uni.*\b_Z\d+{INSIDE[name]}(?=I|v)", ptx))
        if inside < number:
            wrong.append(f"{name}: {number} calls, but {inside} of {INSIDE[name]} in the PTX")
    if STATE not in ptx or re.search(r"\.extern \.func[^\n]*nvshmem", ptx):
        wrong.append("NVSHMEM's bitcode is not linked in")
    return wrong


def _by_all_threads(ttgir: Iterable[str]) -> list[str]:
    """Functions for one thread that are called outside of a branch on which thread it is."""
    made: dict[str, str] = {}
    branches: list[str | None] = []
    wrong: list[str] = []
    for line in ttgir:
        text = line.strip()
        if result := re.match(r"(%[\w-]+) = ", text):
            made[result[1]] = text
        if (call := re.search(r'symbol = "(\w+)"', text)) and call[1] in ONE_THREAD:
            guarded = any(b is not None and _asks_for_thread(b, made) for b in branches)
            wrong += [] if guarded else [call[1]]
        if text.startswith("}"):
            branches.pop()
        if re.search(r"\{( loc\(.*\))?$", text):
            condition = re.search(r"scf\.if (%[\w-]+)", text)
            branches.append(condition[1] if condition else None)
    return wrong


def _asks_for_thread(value: str, made: dict[str, str]) -> bool:
    """Whether a condition depends on the number of the thread."""
    text = made.get(value, "")
    operands = re.findall(r"%[\w-]+", text.split(" = ", 1)[-1].split(" loc(")[0])
    return "%tid.x" in text or any(_asks_for_thread(v, made) for v in operands if v in made)
