"""Roles with own="stored": what stays on a rank is stored by the role that makes it, and only the rest is copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.frontend.test_folding import LAUNCH, SCHEDULE, SEND, SOURCE, STORE, WAIT
from tests.frontend.wrong import Case, changed, check, load
from tilelink.errors import ScheduleError, WaitWithoutNotifyError
from tilelink.runtime.cpu.world import CpuWorld

STORED = 'tk.SMs(2, tile=(16, 16), at="source", own="stored")'


def stored(changes: dict[str, str] | None = None, send: str = STORED) -> str:
    return changed(SOURCE, {'tk.Epilogue("make")': send, **(changes or {})})


def case(name: str, changes: dict[str, str], *says: str, send: str = STORED) -> Case:
    return Case(name, ScheduleError, stored(changes, send), says)


WRONG = [
    case(
        "no such word",
        {SCHEDULE: SCHEDULE.replace('tk.Epilogue("make")', STORED.replace('"stored"', '"kept"')) + "  # <-"},
        "own='kept': it is one of 'copied', 'stored'",
        send='tk.Epilogue("make")',
    ),
    case(
        "waits for nothing",
        {WAIT: "", SEND: SEND.replace("mine", "x[t].at(t.source)"), LAUNCH: f"{LAUNCH}  # <-"},
        'send has own="stored", and it waits for nothing; own="stored" is for a role that copies what an earlier role '
        'makes, and own="read" for one that copies an input. Leave out own="stored"',
    ),
    Case(
        "makes it without a notification",
        WaitWithoutNotifyError,
        stored({STORE: STORE.replace("tk.notify(", "(")} | {WAIT: f"{WAIT}  # <-"}),
        ("send waits for", "Write tk.notify(...) around the store to partial"),
    ),
    case(
        "computes",
        {SEND: "    block = mine.load()  # <-\n    tk.notify(inbox[t.source, t].store(block))"},
        'send has own="stored", and it computes; own="stored" is for roles that only wait, copy and notify',
        'Leave out own="stored"; the schedule: ',
    ),
    case(
        "other tiles",
        {STORE: "    if t.home > 0:\n        tk.notify(partial[t].store(block + block))", WAIT: f"{WAIT}  # <-"},
        "and make notifies partial[M[M_lo:+16], K[K_lo:+16]] in a loop or a branch (",
        'send has own="stored", so make stores what stays on a rank in its epilogue; but send can\'t be done in the ',
        'Leave out own="stored"; the schedule: ',
    ),
    case(
        "goes to several ranks",
        {
            SEND: SEND.replace("inbox[t.source, t]", "inbox[t.source, t].at(tk.ranks)"), LAUNCH: f"{LAUNCH}  # <-",
            'inbox = tk.sharded(tk.ranks, "M", "K", axis=1)': 'inbox = tk.local(tk.ranks, "M", "K")',
        },
        'send has own="stored", and a tile of it copies to several ranks, or to all, so no part of it stays',
    ),
    case(
        "several roles make it",
        {
            LAUNCH: f'    make.named("more")[tk.tiles(partial)](x, partial)\n{LAUNCH}  # <-',
            "add=tk": "more=tk.SMs(tile=(16, 16)), add=tk",
        },
        'send has own="stored", and make and more make what it waits for; own="stored" is for copies of what one',
    ),
    case(
        "others need it",
        {
            LAUNCH: f'{LAUNCH}  # <-\n    send.named("again")[tk.tiles(out, source=tk.ranks)](x, partial, twice)',
            "    make[tk.tiles": '    twice = tk.sharded(tk.ranks, "M", "K", axis=1)\n    make[tk.tiles',
            "add=tk": "again=tk.SMs(tile=(16, 16), at='source', own='stored'), add=tk",
        },
        'send has own="stored", and again needs partial, too, which would lack what stays on a rank',
    ),
    case(
        "an output",
        {
            'out: tk.Sharded("M", "K")': 'out: tk.Sharded("M", "K"), partial: tk.Local("M", "K")',
            '    partial = tk.local("M", "K")\n': "", LAUNCH: f"{LAUNCH}  # <-",
        },
        'send has own="stored", and every element of the output partial must be written',
    ),
    Case(
        "waits for what its own rank makes",
        ScheduleError,
        stored({WAIT: f"{WAIT.replace('.at(t.source)', '')}  # <-"}, STORED.replace("source", "home")),
        (
            "it waits for partial[M[M_lo:+16], K[K_lo:+16]], memory of its own rank, and source is the rank that makes "
            "it: write .at(t.source)",
        ),
    ),
    case(
        "nothing leaves its rank",
        {
            LAUNCH: "    send[tk.tiles(partial)](x, partial, inbox)  # <-",
            WAIT: "    mine = tk.wait(partial[t])", SEND: SEND.replace("inbox[t.source, t]", "inbox[0, t]"),
            'inbox = tk.sharded(tk.ranks, "M", "K", axis=1)': 'inbox = tk.local(tk.ranks, "M", "K")',
            ', at="source"': "", 'out: tk.Sharded("M", "K")': 'out: tk.Local("M", "K")',
            "    for source in tk.ranks():": "    for source in range(1):",
        },
        "all that it copies stays on its rank; tk.Epilogue('make') stores all of that",
    ),
    case(
        "tiles across parts",
        {"make=tk.SMs(tile=(16, 16))": "make=tk.SMs(tile=(16, 16), order=tk.across_parts)", LAUNCH: f"{LAUNCH}  # <-"},
        "send: order=across_parts is for tiles of local tensors on SMs",
    ),
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=lambda c: c.name)
def test_what_can_not_be_stored(wrong: Case, tmp_path: Path) -> None:
    check(wrong, tmp_path)


def test_the_schedule_is_named_once(tmp_path: Path) -> None:
    module = load(tmp_path, stored({STORE: "    if t.home > 0:\n        tk.notify(partial[t].store(block + block))"}))
    with pytest.raises(ScheduleError, match="can't be done in the epilogue of make") as e:
        module.main()
    assert e.value.message.endswith(f'. Leave out own="stored"; the schedule: {module.schedule.site}')
    assert str(e.value).count(str(module.schedule.site)) == 1


@pytest.mark.parametrize("at", ["source", "home"])
def test_a_rank_copies_to_others_only(at: str, tmp_path: Path) -> None:
    text = str(load(tmp_path, stored(send=STORED.replace("source", at))).main())
    assert """
    partial_kept = (block + block).to(tl.float32)
    if home == rank:
        inbox[rank, M[M_lo:+16], K[K_lo:+16]].at(home).store(partial_kept)
        notify(inbox[rank, M[M_lo:+16], K[K_lo:+16]].at(home))
    else:
        partial[M[M_lo:+16], K[K_lo:+16]].store(partial_kept)
        notify(partial[M[M_lo:+16], K[K_lo:+16]])
""" in text
    maker, home = ("rank", "home") if at == "source" else ("source", "rank")
    assert f"""
    if {home} != {maker}:
        mine_ready = wait(partial[M[M_lo:+16], K[K_lo:+16]]{"" if at == "source" else ".at(source)"})
        copy partial""" in text
    assert ("via" not in text) and text.count("own='stored'") == 1


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(
    "send",
    [STORED, STORED.replace("source", "home"), 'tk.CopyEngine(tile=(16, None), at="source", own="stored")'],
    ids=["push", "pull", "engine"],
)
def test_the_sum_is_the_same(world: int, send: str, tmp_path: Path) -> None:
    """Parts that no tile divides, an empty one, two calls: the bits are those of the schedule that copies."""
    module, rows = load(tmp_path, stored(send=send)), [5, 16, 33, 7, 1, 0, 17, 2][:world]
    rows[world // 2] = 0 if world > 2 else rows[world // 2]
    report = module.program.check(module.schedule, world=world, M=tuple(rows), K=20)
    assert (report.verdict, report.proof) == ("safe", "structural"), report
    x = torch.randint(-4, 5, (2, world, sum(rows), 20)).float()

    def rank(group: Any) -> list[torch.Tensor]:
        outs = torch.full((2, rows[group.rank], 20), torch.nan)
        for n in range(2):
            module.program(x[n, group.rank], outs[n], schedule=module.schedule, group=group, parts={"M": tuple(rows)})
        return list(outs)

    for n, outs in enumerate(zip(*CpuWorld(world, seed=world).run(rank), strict=True)):
        assert torch.equal(torch.cat(outs), 2 * x[n].sum(0))


def test_an_engine_with_tiles_shorter_than_those_that_it_copies(tmp_path: Path) -> None:
    short = 'tk.CopyEngine(tile=(8, None), at="source", own={})'
    tiles = {'add=tk.SMs(tile=(16, 16))': 'add=tk.SMs(tile=(8, 16))'}
    copied, module = (
        load(tmp_path, stored(tiles, short.format(f'"{own}"')), name=own) for own in ("copied", "stored")
    )
    assert copied.program.check(copied.schedule, world=2, M=32, K=20).verdict == "safe"
    with pytest.raises(ScheduleError) as e:
        module.program.check(module.schedule, world=2, M=32, K=20)
    assert "A cell is 1 along ranks x 16 along M" in str(e.value)
    assert 'with own="stored" no cell is shorter than a tile of the role that makes' in str(e.value)


def test_a_role_that_owns_another_epilogue(tmp_path: Path) -> None:
    """The role that stores what stays may have another role in its epilogue."""
    source = stored({
        LAUNCH: f'{LAUNCH}\n    send.named("again")[tk.tiles(out, source=tk.ranks)](x, partial, twice)\n'
        '    add.named("more")[tk.tiles(also)](twice, also)',
        "    make[tk.tiles": '    twice = tk.sharded(tk.ranks, "M", "K", axis=1)\n    make[tk.tiles',
        'out: tk.Sharded("M", "K")': 'out: tk.Sharded("M", "K"), also: tk.Sharded("M", "K")',
    })  # fmt: skip
    source = changed(source, {"add=tk": 'again=tk.Epilogue("make"), more=tk.SMs(tile=(16, 16)), add=tk'})
    module = load(tmp_path, source)
    assert str(module.main()).count("partial_kept = ") == 1
    x, parts = torch.randint(-4, 5, (3, 50, 16)).float(), {"M": (20, 0, 30)}
    made = CpuWorld(3).run(lambda g: module.program(x[g.rank], schedule=module.schedule, group=g, parts=parts))
    for outs in zip(*made, strict=True):
        assert torch.equal(torch.cat(outs), 2 * x.sum(0))
