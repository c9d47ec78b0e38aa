"""Programs that are wrong, as text: each is written to a file of its own, as tile functions have to be. The line that
the error has to name ends in `# <-`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests import modules
from tilelink.errors import TileLinkError

MARK = "# <-"

HEAD = """\
import triton
import triton.language as tl

import tilelink as tk
"""

GATHER = """
@tk.tile
def gather(t, x, full):
    tk.notify(tk.copy(x[t], full[t].at(t.reader)))


@tk.tile
def use(t, full, out):
    rows = tk.wait(full[t.rows])
    acc = tl.zeros(t.shape, tl.float32)
    for k in tk.steps(full.cols):
        acc += rows[:, k].load()
    out[t].store(acc)


@tk.program
def program(x: tk.Sharded("M", "K"), out: tk.Local("M", "N")):
    full = tk.local("M", "K")
    gather[tk.tiles(x, reader=tk.ranks)](x, full)
    use[tk.tiles(out)](full, out)


schedule = tk.Schedule(
    gather=tk.SMs(4, tile=(16, 16), at="home"),
    use=tk.SMs(tile=(16, 16, 16)),
)


def main():
    return program.unroll(schedule, world=2, M=64, K=64, N=16)
"""

ALONE = """
@tk.tile
def role(t, x, weight, out, inbox):
    {body}


@tk.program
def program(x: tk.Local("M", "K"), weight: tk.Local("K", "N"), out: tk.Local("M", "N")):
    inbox = tk.local(tk.ranks, "M", "N")
    role[tk.tiles(out)](x, weight, out, inbox)


schedule = tk.Schedule(role=tk.SMs(tile={tile}))


def main():
    return program.unroll(schedule, world=2, M=32, K=32, N=32)
"""

# Parts of the sources that cases replace.
NOTIFY = "    tk.notify(tk.copy(x[t], full[t].at(t.reader)))"
WAIT = "tk.wait(full[t.rows])"
STORE = "    out[t].store(acc)"
READ = "        acc += rows[:, k].load()"
PROGRAM = 'def program(x: tk.Sharded("M", "K"), out: tk.Local("M", "N")):'
LAUNCH_GATHER = "gather[tk.tiles(x, reader=tk.ranks)](x, full)"
LAUNCH_USE = "use[tk.tiles(out)](full, out)"
GATHER_TILE = 'tile=(16, 16), at="home"'
USE_TILE = "tile=(16, 16, 16)"
UNROLL = "program.unroll(schedule, world=2, M=64, K=64, N=16)"


@dataclass(frozen=True)
class Case:
    """A program that is wrong, what has to be raised, and what the message has to say."""

    name: str
    kind: type[TileLinkError]
    source: str
    says: tuple[str, ...]


def tile(name: str, kind: type[TileLinkError], body: str, *says: str) -> Case:
    """A role over the tiles of out[M, N], with x[M, K], weight[K, N] and inbox[ranks, M, N]."""
    return Case(name, kind, alone(body), says)


def pair(name: str, kind: type[TileLinkError], changes: dict[str, str], *says: str) -> Case:
    """The roles `gather` and `use` and their program and schedule, with parts of the source replaced."""
    return Case(name, kind, changed(GATHER, changes), says)


def schedule(name: str, kind: type[TileLinkError], written: str, *says: str) -> Case:
    """The two roles with another schedule, on one line."""
    begin = GATHER.index("schedule = ")
    end = GATHER.index("\n\n\ndef main")
    return Case(name, kind, GATHER[:begin] + f"schedule = {written}" + GATHER[end:], says)


def check(case: Case, folder: Path) -> None:
    """Runs a case and looks at the error: its class, its place and its words."""
    with pytest.raises(TileLinkError) as caught:
        load(folder, case.source).main()
    error = caught.value
    assert type(error) is case.kind, error
    where = f"{folder / 'user.py'}:{marked_line(case.source)}: "
    assert str(error).startswith(where), f"{error}\nis not at {where}"
    for text in case.says:
        assert text in error.message, f"{text!r} is not said: {error}"


def changed(source: str, changes: dict[str, str]) -> str:
    """The source with texts replaced, each of which stands in it once."""
    for old, new in changes.items():
        assert source.count(old) == 1, f"{old!r} stands in the source {source.count(old)} times"
        source = source.replace(old, new)
    return source


def alone(body: str) -> str:
    """A program of one role with this body. Its tile has a step if the body has a loop over steps."""
    tile = "(16, 16, 16)" if "tk.steps(" in body else "(16, 16)"
    return ALONE.format(body=body.strip("\n").replace("\n", "\n    "), tile=tile)


def of_role(
    program: str, name: str, kind: type[TileLinkError], body: str, *said: str, takes: str = ""
) -> Any:
    """Returns a case, as a parameter of a test: a program whose role has this body, and takes one more buffer."""
    text = program.format(body=body, more=f", {takes}" if takes else "")
    if takes:
        text = text.replace("floats, out):\n    ", f"floats, out, {takes}):\n    ", 1)
    return pytest.param(Case(name, kind, text, said), id=name)


def load(folder: Path, source: str, name: str = "user") -> ModuleType:
    """The module with this source, from a file in `folder`."""
    return modules.load(folder / f"{name}.py", HEAD + source, f"{name}_{abs(hash(source))}")


def marked_line(source: str) -> int:
    """The number of the marked line in the file that `load` writes."""
    lines = (HEAD + source).splitlines()
    marked = [k for k, line in enumerate(lines, 1) if line.endswith(MARK)]
    assert len(marked) == 1, f"{len(marked)} lines are marked"
    return marked[0]
