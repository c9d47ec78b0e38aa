"""Random programs of the language, as the text of a file, with sizes and arguments.

A program has a few roles, one after the other: each makes a buffer from what is there (its own rank's part, that of
peers, of all ranks, in turns of a ring), and the last make outputs. Numbers are small integers, so results are exact.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import numpy as np

from tests.differential.reference import Dim, Output

HEAD = """import triton
import triton.language as tl

import tilelink as tk


@tk.order
def backwards(step, rank, world):
    return (rank + 2 * world - 1 - step) % world


@triton.jit
def twice(x):
    return x + x
"""

RANKS = ("t.home", "t.reader", "t.source")


@dataclass
class Case:
    """A drawn program. `dims`: with parts, of those that are cut; `given`: see `reference`; `damage`: what was done to
    it, None if nothing was."""

    seed: int
    source: str
    schedules: list[str]
    world: int
    dims: dict[str, Dim]
    given: dict[str, Any]
    small: bool
    damage: str | None = None


@dataclass(frozen=True)
class Named:
    """A tensor of the program: `cut` is the dimension along which it is sharded."""

    name: str
    dims: tuple[str, ...]
    cut: int | None
    kind: str
    buffers: int | None = None
    listed: bool = False

    @property
    def written(self) -> bool:
        return self.kind == "buffer"

    @property
    def declared(self) -> str:
        dims = ", ".join("tk.ranks" if d == "ranks" else repr(d) for d in self.dims)
        word = ("Local" if self.cut is None else "Sharded") if self.kind != "buffer" else "local"
        if self.kind == "buffer" and self.cut is not None:
            word = "sharded"
        more = f", axis={self.cut}" if self.cut else ""
        more += f", buffers={self.buffers}" if self.buffers else ""
        made = f"tk.{word}({dims}{more})"
        return f"tk.Each({made})" if self.listed else made


@dataclass
class Role:
    """A tile function, being written."""

    name: str
    parameters: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    integers: list[str] = field(default_factory=list)
    variables: int = 0
    steps: bool = False
    branched: bool = False
    released: set[str] = field(default_factory=set)

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fresh(self, stem: str) -> str:
        self.variables += 1
        return f"{stem}{self.variables}"

    def of(self, tensor: Named | str) -> str:
        """The parameter for a tensor."""
        name = tensor if isinstance(tensor, str) else tensor.name
        if name not in self.parameters:
            self.parameters.append(name)
        return name

    @contextmanager
    def inside(self, head: str, *integers: str) -> Iterator[None]:
        self.line(head)
        self.depth += 1
        before = self.integers, self.branched
        self.integers, self.branched = [*self.integers, *integers], self.branched or head.startswith("if ")
        yield
        self.depth, (self.integers, self.branched) = self.depth - 1, before


class Drawing:
    """Draws one program."""

    def __init__(self, seed: int, small: bool) -> None:
        self.seed, self.r, self.small = seed, random.Random(seed), small
        r = self.r
        self.world = r.choice([1, 2, 2, 2, 2, 3] if small else [1, 2, 2, 2, 3, 3, 4])
        self.cut = r.random() < 0.7
        if self.cut:
            parts = [r.choice([0, 1, 2, 3]) for _ in range(self.world)]
            parts = parts if r.random() < 0.6 else [r.choice([1, 2, 3])] * self.world
            parts[r.randrange(self.world)] += not sum(parts)
            m = Dim("M", sum(parts), tuple(parts))
        else:
            m = Dim("M", r.randint(1, 6))
        self.dims = {"M": m, **{n: Dim(n, r.randint(1, 3 if small else 6)) for n in "NK"}}
        self.listed = r.choice([1, 2, 2, 3])
        """Members of lists."""
        self.tensors: list[Named] = []
        self.optional: list[str] = []
        self.roles: list[tuple[Role, str, str]] = []
        """Roles, the spaces they are launched over, and what says who executes them."""
        self.made: list[str] = []
        self.given: dict[str, Any] = {}
        self.known(Named("x0", ("M", "N"), 0 if self.cut else None, "input"))  # so M is cut in the whole program

    def chance(self, p: float) -> bool:
        return self.r.random() < p

    # ---- integers and conditions

    def integer(self, role: Role, depth: int = 2) -> str:
        r = self.r
        if depth == 0 or self.chance(0.3):
            return r.choice([*role.integers, *role.integers, "tk.rank()", "tk.world()", *"0123"])
        a, b = self.integer(role, depth - 1), self.integer(role, depth - 1)
        match r.randrange(7):
            case 0 | 1:
                return f"({a} + {b})"
            case 2:
                return f"({a} - {b})"
            case 3:
                return f"({a} * {b})"
            case 4:
                return f"({a} {r.choice(['//', '%'])} {self.divisor(role)})"
            case 5:
                return f"{r.choice(['min', 'max'])}({a}, {b})"
        return f"({a} + {r.randint(1, 3)})"

    def divisor(self, role: Role) -> str:
        a = self.integer(role, 0)
        return self.r.choice(["2", "3", "tk.world()", f"max(1, {a})", f"({a} + tk.world())", f"(1 + {a})"])

    def peer(self, role: Role) -> str:
        axes = [i for i in role.integers if i in RANKS]
        some = [f"({self.integer(role)}) % tk.world()", f"(tk.rank() + {self.r.randint(1, 3)}) % tk.world()"]
        return self.r.choice([*some, str(self.r.randrange(self.world)), "tk.rank()", *axes])

    def condition(self, role: Role) -> str:
        r = self.r
        made = f"{self.integer(role)} {r.choice(['<', '<=', '==', '!=', '>', '>='])} {self.integer(role)}"
        if self.chance(0.15):
            made = self.integer(role)
        if self.chance(0.3):
            made = f"({made}) {r.choice(['and', 'or'])} {self.integer(role)} > {self.integer(role, 1)}"
        return f"not ({made})" if self.chance(0.15) else made

    # ---- blocks of data

    def source(self, *dims: str, cut: bool | None = None, given: bool = False) -> Named:
        """An input of these dimensions: one that is there, or a new one; `given`: it is not left out."""
        same = [t for t in self.tensors if t.dims == dims and t.kind == "input" and cut in (None, t.cut is not None)]
        same = [t for t in same if not given or t.name not in self.optional]
        if same and self.chance(0.6):
            return self.r.choice(same)
        place = dims.index("M") if "M" in dims and self.cut and (self.chance(0.5) if cut is None else cut) else None
        made = self.known(Named(f"{self.r.choice('xyzw')}{len(self.tensors)}", dims, place, "input"))
        if self.chance(0.12) and "K" not in dims and not given:
            self.optional.append(made.name)
            if self.chance(0.5):
                self.given[made.name] = None
        return made

    def known(self, of: Named) -> Named:
        self.tensors.append(of)
        self.given[of.name] = self.values(of)
        return of

    def values(self, of: Named) -> list[np.ndarray[Any, Any]]:
        draw = np.random.default_rng(self.r.randrange(1 << 30))
        made = []
        for rank in range(self.world):
            shape = [self.world if d == "ranks" else self.dims[d].size for d in of.dims]
            if of.cut is not None:
                parts = self.dims[of.dims[of.cut]].parts
                assert parts is not None
                shape[of.cut] = parts[rank]
            made.append(draw.integers(-2, 4, shape).astype(np.float32))
        return made

    def view(self, role: Role, of: Named, index: str, rank: str | None = None) -> str:
        """A view, guarded where tiles write the tensor."""
        at = f".at({rank})" if rank else ""
        made = f"{role.of(of)}[{index}]{at}"
        return f"tk.wait({made})" if of.written else made

    def rank_of(self, role: Role, of: Named) -> str | None:
        return self.peer(role) if of.cut is None and self.chance(0.4) else None

    def loaded(self, role: Role) -> str:
        """A block that fits the tile, from some tensor."""
        r, rank = self.r, None
        taken = {t.name for t in self.tensors if t.buffers and role.branched} | role.released
        buffers = [t for t in self.tensors if t.written and t.name not in taken]
        kind = r.choice(["tile", "tile", "row", "col", "steps", "steps", "all", "entry", "ranks", "rows"])
        if buffers and self.chance(0.6):
            of = r.choice(buffers)
            if of.buffers:
                return self.of_ring(role, of)
            if of.dims[0] == "ranks":
                return self.of_entries(role, of)
            return self.of_buffer(role, of)
        match kind:
            case "tile":
                of = self.source("M", "N")
                rank = self.rank_of(role, of)
                if self.chance(0.3):
                    ways = ["[t.M][:, t.N]", "[t.rows][t]", "[t.rows, t.cols]", "[t.M, t.N]"]
                    ways += ["[:, t.N][t.M]", "[:, :][t]"] if of.cut is None else []
                    at = f".at({rank})" if rank else ""
                    return self.asked(role, of, f"{role.of(of)}{r.choice(ways)}{at}.load()")
                return self.asked(role, of, f"{self.view(role, of, 't', rank)}.load()")
            case "row":
                of = self.source("N")
                return self.asked(role, of, f"{self.view(role, of, 't.N', self.rank_of(role, of))}.load()[None, :]")
            case "col":
                of = self.source("M")
                return self.asked(role, of, f"{self.view(role, of, 't.M', self.rank_of(role, of))}.load()[:, None]")
            case "steps":
                dims, index, axis, widen = r.choice([
                    (("M", "K"), "t.M, {k}", 1, "[:, None]"), (("K", "N"), "{k}, t.N", 0, "[None, :]"),
                    (("K",), "{k}", 0, ""),
                ])  # fmt: skip
                of = self.source(*dims)
                return self.summed(role, of, "K", index, axis, widen)
            case "all":  # all rows, part by part
                return self.summed(role, self.source("M", "N", given=True), "M", "{k}, t.N", 0, "[None, :]")
            case "rows":
                return self.of_own_rows(role)
            case "entry":
                return self.of_an_entry(role)
        return self.of_ranks(role)

    def of_own_rows(self, role: Role) -> str:
        """Rows of the tile, added up by its own steps."""
        of = self.source("M", "N")
        rank = self.rank_of(role, of)
        acc, k = self.zeros(role, "(1, len(t.N))"), role.fresh("k")
        role.steps = True
        with role.inside(f"for {k} in tk.steps(t.M):", f"{k}.start"):
            view = f"{role.of(of)}[{k}, t.N]" + (f".at({rank})" if rank else "")
            summed = f"tl.sum({view}.load(), 0)[None, :]"
            role.line(f"{acc} += {self.asked(role, of, summed)}")
        return acc

    def of_an_entry(self, role: Role) -> str:
        """One entry along K, or some of them, added up."""
        of = self.source("M", "K", "N")
        j = f"({self.integer(role)}) % {role.of(of)}.K.size"
        if self.chance(0.5):
            j = role.fresh("j")
            acc = self.zeros(role)
            count = self.r.choice([f"{role.of(of)}.K.size", f"min({role.of(of)}.K.size, {self.integer(role)})"])
            with role.inside(f"for {j} in range({count}):", j):
                load = f"{role.of(of)}[t.M, {j}, t.N].load()"
                role.line(f"{acc} += {self.asked(role, of, load)} * {self.integer(role, 1)}")
            return acc
        return self.asked(role, of, f"{role.of(of)}[t.M, {j}, t.N].load()")

    def of_ranks(self, role: Role) -> str:
        """The entry of one rank, or of all, added up."""
        of = self.source("ranks", "M", "N", cut=False)
        s = self.peer(role)
        if self.chance(0.5):
            acc, s = self.zeros(role), role.fresh("s")
            with role.inside(f"for {s} in tk.ranks():", s):
                role.line(f"{acc} += {self.asked(role, of, f'{role.of(of)}[{s}, t].load()')} * ({s} + 1)")
            return acc
        return self.asked(role, of, f"{role.of(of)}[{s}, t].load()")

    def asked(self, role: Role, of: Named, load: str) -> str:
        """The same, where the tensor may be left out: a number, if it is."""
        return f"(1 if {role.of(of)} is None else {load})" if of.name in self.optional else load

    def zeros(self, role: Role, shape: str = "t.shape") -> str:
        acc = role.fresh("acc")
        role.line(f"{acc} = tl.zeros({shape}, tl.float32)")
        return acc

    def summed(self, role: Role, of: Named, dim: str, index: str, axis: int, widen: str) -> str:
        rank, k = self.rank_of(role, of), role.fresh("k")
        acc, role.steps = self.zeros(role), True
        stop = f", stop={self.integer(role)}" if self.chance(0.25) else ""
        with role.inside(f"for {k} in tk.steps({role.of(of)}.{dim}{stop}):", f"{k}.start", f"{k}.stop"):
            summed = f"tl.sum({self.view(role, of, index.format(k=k), rank)}.load(), {axis}){widen}"
            role.line(f"{acc} += {self.asked(role, of, summed)}")
        return acc

    def of_buffer(self, role: Role, of: Named) -> str:
        """From a buffer with the dimensions of the tile."""
        r, rank = self.r, self.rank_of(role, of)
        at = f".at({rank})" if rank else ""
        match r.choice(["tile", "tile", "named", "rows", "steps", "later steps", "all", "corner", "two"]):
            case "tile":
                return f"{self.view(role, of, 't', rank)}.load()"
            case "named":
                v = role.fresh("v")
                role.line(f"{v} = {self.view(role, of, 't', rank)}")
                return f"{v}.load()"
            case "rows":
                v = role.fresh("v")
                role.line(f"{v} = {self.view(role, of, 't.M', rank)}")
                return f"{v}[{r.choice([':, t.N', 't', 't.M, t.N'])}].load()"
            case "steps":
                return self.summed(role, of, "N", "t.M, {k}", 1, "[:, None]")
            case "later steps":
                v, k = role.fresh("v"), role.fresh("k")
                role.line(f"{v} = {self.view(role, of, 't.M', rank)}")
                acc, role.steps = self.zeros(role), True
                with role.inside(f"for {k} in tk.steps({role.of(of)}.N):"):
                    role.line(f"{acc} += tl.sum({v}[:, {k}].load(), 1)[:, None] + {k}.start")
                return acc
            case "all":
                return self.summed(role, of, "M", "{k}, t.N", 0, "[None, :]")
            case "corner" if of.cut is None:
                v = role.fresh("v")
                role.line(f"{v} = tk.wait({role.of(of)}[:, :]{at})")
                i, j = (r.choice(["0", f"({self.integer(role, 1)}) % {role.of(of)}.{d}.size"]) for d in "MN")
                return f"({v}[t].load() + {v}[{i}, {j}].load())"
            case "two" if of.cut is None:
                a, b = role.fresh("v"), role.fresh("v")
                role.line(f"{a}, {b} = tk.wait({role.of(of)}[t], {role.of(of)}[t].at({self.peer(role)}))")
                return f"({a}.load() - {b}.load())"
        return f"{self.view(role, of, 't', rank)}.load()"

    def of_entries(self, role: Role, of: Named) -> str:
        """From a buffer with an entry a rank."""
        rank = self.rank_of(role, of)
        if self.chance(0.4):
            return f"{self.view(role, of, f'{self.peer(role)}, t', rank)}.load()"
        acc, s = self.zeros(role), role.fresh("s")
        with role.inside(f"for {s} in tk.ranks():", s):
            role.line(f"{acc} += {self.view(role, of, f'{s}, t', rank)}.load() * ({s} + {self.r.randint(1, 2)})")
        return acc

    def of_ring(self, role: Role, of: Named) -> str:
        """From entries that take turns, each released when it is read."""
        acc, s, v = self.zeros(role), role.fresh("s"), role.fresh("v")
        role.released.add(of.name)
        with role.inside(f"for {s} in tk.ranks():", s):
            role.line(f"{v} = tk.wait({role.of(of)}[{s}, t])")
            role.line(f"{acc} += {v}.load() * ({s} + 1)")
            role.line(f"tk.release({v})")
        return acc

    def block(self, role: Role, depth: int = 2) -> str:
        """A block that fits the tile."""
        r = self.r
        if depth == 0 or self.chance(0.25):
            return self.loaded(role)
        if self.chance(0.15):  # several loads of one tensor in one statement
            of = self.source("M", "N", cut=False, given=True)
            loads = [f"{role.of(of)}[t].at({self.peer(role)}).load()" for _ in range(r.randint(2, 4))]
            return f"({' + '.join(f'{r.randint(1, 9)} * {load}' for load in loads)})"
        a = self.block(role, depth - 1)
        match r.randrange(9):
            case 0 | 1:
                return f"({a} + {self.block(role, depth - 1)})"
            case 2:
                return f"({a} - {self.block(role, depth - 1)})"
            case 3:
                return f"({a} * {self.integer(role, 1)})"
            case 4:
                return f"tl.{r.choice(['maximum', 'minimum'])}({a}, {self.block(role, depth - 1)})"
            case 5:
                test = f"{a} > {r.randint(-1, 3)}"
                if self.chance(0.4):
                    test = f"({test}) {r.choice('&|')} ({a} < {self.integer(role, 1)})"
                return f"tl.where({test}, {self.block(role, depth - 1)}, {self.integer(role, 1)})"
            case 6:
                return f"({a} + {self.integer(role)})"
            case 7:
                return r.choice([f"-{a}", f"tl.abs({a})", f"twice({a})"])
        return f"({a} * 2 - {self.r.choice([self.integer(role, 1), '0.5'])})"

    def value(self, role: Role) -> str:
        """The block that a tile stores: a variable of the tile's shape."""
        acc = self.zeros(role)
        role.line(f"{acc} += {self.block(role)}")
        if self.chance(0.25):
            with role.inside(f"if {self.condition(role)}:"):
                role.line(f"{acc} = {acc} + {self.block(role, 1)}")
            if self.chance(0.5):
                with role.inside("else:"):
                    role.line(f"{acc} -= {self.integer(role, 1)}")
        if self.chance(0.1):
            with role.inside(f"if tl.max({acc}) > {self.r.randint(-1, 4)}:"):
                role.line(f"{acc} = {acc} - {self.r.randint(1, 3)}")
        return acc

    # ---- roles

    def role(self, *integers: str) -> Role:
        return Role(f"f{len(self.roles)}", integers=["t.M.start", "t.N.start", "t.M.stop", *integers])

    def homes(self) -> list[str]:
        return ["t.home"] if self.cut else []

    def stores(self, role: Role, view: str) -> None:
        """Stores to a view, and notifies it; in one way, or in one of two."""
        def once() -> None:
            if self.chance(0.3):
                v = role.fresh("there")
                role.line(f"{v} = {view}")
                role.line(f"{v}.store({self.value(role)})")
                role.line(f"tk.notify({v})")
            else:
                role.line(f"tk.notify({view}.store({self.value(role)}))")
        if self.chance(0.15):
            coordinates, role.integers = role.integers, [i for i in role.integers if i in RANKS]
            condition, role.integers = self.condition(role), coordinates
            with role.inside(f"if {condition}:"):
                once()
            with role.inside("else:"):
                once()
        else:
            once()

    def own(self) -> None:
        """Each rank its own, or each home its part."""
        role = self.role(*self.homes())
        cut = 0 if self.cut and self.chance(0.5) else None
        filled = self.draft(role, ("M", "N"), cut)
        self.stores(role, f"{role.of(filled)}[t]")
        self.launch(role, f"tk.tiles({filled.name})", "None", filled)

    def push(self) -> None:
        """Parts go to all ranks, or to a reader, as they are or computed with."""
        if not self.cut:
            return self.shift()
        to_all = self.chance(0.25)
        role = self.role("t.home", *([] if to_all else ["t.reader"]))
        filled = self.draft(role, ("M", "N"), None)
        there = f"{role.of(filled)}[t].at({'tk.ranks' if to_all else 't.reader'})"
        kept = [t for t in self.tensors if t.dims == ("M", "N") and t.cut == 0 and t.written]
        if self.chance(0.5):
            of = self.r.choice(kept) if kept and self.chance(0.7) else self.source("M", "N", cut=True, given=True)
            role.line(f"tk.notify(tk.copy({self.view(role, of, 't')}, {there}))")
        if not role.lines:
            self.stores(role, there)
        axis = "" if to_all else ", reader=tk.ranks"
        self.launch(role, f"tk.tiles({self.cut_tensor()}.M, {filled.name}.N{axis})", "'home'" if to_all else
                    self.r.choice(["'home'", "'reader'"]), filled)
        return None

    def cut_tensor(self) -> str:
        """A tensor that is cut over the ranks."""
        return self.r.choice([t.name for t in self.tensors if t.cut is not None and t.name not in self.optional])

    def shift(self) -> None:
        """To a neighbour."""
        role = self.role(*self.homes())
        filled = self.draft(role, ("M", "N"), None)
        self.stores(role, f"{role.of(filled)}[t].at((tk.rank() + {self.r.randint(0, 3)}) % tk.world())")
        self.launch(role, f"tk.tiles({filled.name})", "None", filled)

    def slots(self) -> None:
        """Each rank fills its entry, here or on all ranks."""
        role = self.role(*self.homes())
        filled = self.draft(role, ("ranks", "M", "N"), None)
        self.stores(role, f"{role.of(filled)}[tk.rank(), t].at(tk.ranks)")
        self.launch(role, f"tk.tiles({filled.name})", "None", filled)

    def inbox(self) -> None:
        """What a source has of a part goes to its home."""
        if not self.cut:
            return self.slots()
        role = self.role("t.home", "t.source")
        mine = [t for t in self.tensors if t.dims == ("M", "N") and t.cut is None and t.written]
        filled = self.draft(role, ("ranks", "M", "N"), 1)
        if self.chance(0.6):
            of = self.r.choice(mine) if mine and self.chance(0.8) else self.source("M", "N", cut=False, given=True)
            copied = f"tk.copy({self.view(role, of, 't', 't.source')}, {role.of(filled)}[t.source, t])"
            role.line(f"tk.notify({copied})")
        if not role.lines:
            self.stores(role, f"{role.of(filled)}[t.source, t]")
        self.launch(role, f"tk.tiles({filled.name}.M, {filled.name}.N, source=tk.ranks)",
                    self.r.choice(["'home'", "'source'"]), filled)
        return None

    def ring(self) -> None:
        """Entries go round, in a few buffers."""
        role = self.role(*self.homes())
        filled = self.draft(role, ("ranks", "M", "N"), None, self.r.randint(2, 3))
        b = role.of(filled)
        role.line(f"tk.notify({b}[0, t].store({self.value(role)}))")
        with role.inside("for s in range(tk.world() - 1):"):
            role.line(f"here = tk.wait({b}[s, t])")
            role.line(f"there = tk.claim({b}[s + 1, t].at((tk.rank() + 1) % tk.world()))")
            role.line(self.r.choice(["tk.notify(tk.copy(here, there))", "tk.notify(there.store(here.load() + s))"]))
            role.line("tk.release(here)")
        self.launch(role, f"tk.tiles({filled.name})", "None", filled)

    def draft(self, role: Role, dims: tuple[str, ...], cut: int | None, buffers: int | None = None) -> Named:
        """The buffer that a role fills: made known when the role is launched."""
        made = Named(f"b{len(self.made)}", dims, cut, "buffer", buffers)
        self.made.append(made.name)
        return made

    def launch(self, role: Role, space: str, at: str, filled: Named) -> None:
        self.tensors.append(filled)
        self.roles.append((role, space, at))

    def out(self) -> None:
        role = self.role(*self.homes())
        cut = 0 if self.cut and self.chance(0.4) else None
        out = Named(f"out{len(self.roles)}", ("M", "N"), cut, "output")
        role.of(out)
        value = f"{self.value(role)} + {role.of('x0')}[t].load()"  # what no tile reads is refused
        if self.chance(0.2):
            weights, w = self.members("N"), role.fresh("w")
            total, role.steps = self.zeros(role), True
            with (
                role.inside(f"for {w} in tk.each({role.of(weights)}):"),
                role.inside(f"for k{w} in tk.steps({w}.K):"),
            ):
                role.line(f"{total} += tl.sum({w}[k{w}, t.N].load(), 0)[None, :]")
            value = f"{value} + {total}"
        last = [t for t in self.tensors if t.written]
        if last and not any(t.name in role.parameters for t in last):
            of = last[-1]
            value = f"{value} + " + (self.of_ring if of.buffers else self.of_entries if of.dims[0] == "ranks"
                                     else self.of_buffer)(role, of)  # fmt: skip
        role.line(f"{role.of(out)}[t].store({value})")
        self.given[out.name] = Output()
        self.launch(role, f"tk.tiles({out.name})", "None", out)

    def members(self, own: str) -> Named:
        """A list of inputs, whose dimension may be a member's own."""
        made = Named(f"ws{len(self.tensors)}", ("K", own), None, "list", listed=True)
        self.tensors.append(made)
        self.given[made.name] = [self.values(replace(made, dims=("K", d))) for d in self.called(own)]
        return made

    def called(self, dim: str) -> list[str]:
        """What a dimension is called for each member of lists."""
        return [f"{dim}[{k}]" if dim == "J" else dim for k in range(self.listed)]

    def lists(self) -> None:
        """A launch for each member of lists, which have a dimension of their own."""
        self.dims |= {d: Dim("J", self.r.randint(1, 4)) for d in self.called("J")}
        weights, role = self.members("J"), Role(f"f{len(self.roles)}", ["w", "o"])
        role.integers = ["t.M.start", "t.J.start", "w.J.size", *self.homes()]
        out = Named("outs", ("M", "J"), None, "output", listed=True)
        column, acc, role.steps = self.source("M", given=True), self.zeros(role), True
        with role.inside("for k in tk.steps(w.K):", "k.start"):
            role.line(f"{acc} += tl.sum(w[k, t.J].load(), 0)[None, :] * ({self.integer(role)})")
        role.line(f"o[t].store({acc} - {role.of(column)}[t.M].load()[:, None])")
        self.given[out.name] = [Output() for _ in range(self.listed)]
        self.launch(role, f"for w, o in tk.each({weights.name}, outs): {role.name}[tk.tiles(o)]", "None", out)

    # ---- the file

    def resource(self, role: Role, at: str) -> str:
        r = self.r
        ring = any(t.buffers and t.name in role.parameters for t in self.tensors)  # few tiles, or workers get stuck
        sizes = [8, 8] if ring else [r.choice([1, 2, 4, 4, 8]), r.choice([2, 4, 4, 8])]
        step = [r.choice([1, 2, 4, 8])] if role.steps or self.chance(0.1) else []
        sizes += step if role.steps else []  # drawn without a use, too, so that a seed draws the same program as ever
        said = [f"tile=({', '.join(map(str, sizes))})"]
        said[:0] = [str(r.randint(1, 3))] if self.chance(0.7) and not ring else []
        said += [f"at={at}"] if at != "None" else []
        orders = ["tk.ring", "tk.next_rank_first", "backwards", "tk.grouped(2)"]
        said += [f"order={r.choice(orders)}"] if self.chance(0.5) else []
        said += [f"stages={r.randint(1, 4)}"] if self.chance(0.2) else []
        return f"tk.SMs({', '.join(said)})"

    def case(self) -> Case:
        for _ in range(self.r.choice([0, 1, 1, 1] if self.small else [0, 1, 1, 2, 2, 3])):
            self.r.choice([self.own, self.push, self.push, self.shift, self.slots, self.inbox, self.ring])()
        for _ in range(1 if self.small else self.r.choice([1, 1, 2])):
            self.out()
        if self.chance(0.2):
            self.lists()
        text = HEAD
        for role, _, _ in self.roles:
            text += f"\n\n@tk.tile\ndef {role.name}(t, {', '.join(role.parameters)}):\n" + "\n".join(role.lines) + "\n"
        outer = [t for t in self.tensors if t.kind != "buffer"]
        outer.sort(key=lambda t: t.name in self.optional)
        parameters = [f"{t.name}: {t.declared}" + (" = None" if t.name in self.optional else "") for t in outer]
        text += f"\n\n@tk.program\ndef drawn({', '.join(parameters)}):\n"
        for t in self.tensors:
            text += f"    {t.name} = {t.declared}\n" if t.written else ""
        for role, space, _ in self.roles:
            launched = space if space.startswith("for ") else f"{role.name}[{space}]"
            text += f"    {launched}({', '.join(role.parameters)})\n"
        text += "\n\n"
        schedules = [f"s{k}" for k in range(2)]
        for s in schedules:
            slots = ", slots=1" if self.chance(0.2) else ""
            roles = ", ".join(f"{role.name}={self.resource(role, at)}" for role, _, at in self.roles)
            text += f"{s} = tk.Schedule({roles}{slots})\n"
        given = {t.name: self.given[t.name] for t in outer}
        return Case(self.seed, text, schedules, self.world, self.dims, given, self.small)


def drawn(seed: int, *, small: bool = False) -> Case:
    """The program of a seed; `small`: of fewer roles and tiles."""
    return Drawing(seed, small).case()


# ---- deliberate damage


def _word(node: ast.AST, *words: str) -> TypeGuard[ast.Call]:
    """Whether it is a call of one of our words."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) in [f"tk.{w}" for w in words]


def _says(node: ast.AST, *words: str) -> TypeGuard[ast.Expr]:
    """Whether it is a statement with one of our words."""
    return isinstance(node, ast.Expr) and _word(node.value, *words)


def _elsewhere(of: ast.expr) -> ast.expr:
    return ast.parse(f"({ast.unparse(of)} + 1) % tk.world()", mode="eval").body


def _without(*words: str) -> Change:
    """What is said of a view, not said."""
    return lambda node: node.args[0] if _word(node, *words) and len(node.args) == 1 else None


def _at(change: Callable[[ast.Call], ast.AST], *, to_all: bool = False) -> Change:
    def changed(node: ast.AST) -> ast.AST | None:
        is_at = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "at"
        return change(node) if is_at and (to_all or "tk.ranks" not in ast.unparse(node.args[0])) else None

    return changed


def _to_another(node: ast.Call) -> ast.AST:
    return ast.Call(node.func, [_elsewhere(node.args[0])], [])


def _to_itself(node: ast.Call) -> ast.AST:
    assert isinstance(node.func, ast.Attribute)
    return node.func.value


def _another_entry(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Tuple) or len(node.slice.elts) != 2:
        return None
    entry, rest = node.slice.elts
    if ast.unparse(rest) != "t":
        return None
    return ast.Subscript(node.value, ast.Tuple([_elsewhere(entry), rest], ast.Load()), node.ctx)


def _sometimes(node: ast.AST) -> ast.AST | None:
    if not _says(node, "notify", "release"):
        return None
    return ast.If(ast.parse("tk.rank() == 0", mode="eval").body, [node], [])


def _twice(node: ast.AST) -> ast.AST | None:
    return ast.If(ast.Constant(True), [node, node], []) if _says(node, "notify") else None


def _unreleased(node: ast.AST) -> ast.AST | None:
    return ast.Pass() if _says(node, "release") else None


def _released_early(node: ast.AST) -> ast.AST | None:
    """A loop whose body ends with a release: it comes one statement earlier."""
    if not isinstance(node, ast.For) or not _says(node.body[-1], "release") or len(node.body) < 3:
        return None
    *before, read, release = node.body
    return ast.For(node.target, node.iter, [*before, release, read], [])


def _stale(node: ast.AST) -> ast.AST | None:
    """The first entry is waited for before a loop over entries, and read after it."""
    if not isinstance(node, ast.For) or ast.unparse(node.iter) != "tk.ranks()" or not _says(node.body[-1], "release"):
        return None
    wait, add = node.body[:2]
    assert isinstance(wait, ast.Assign) and isinstance(add, ast.AugAssign) and isinstance(node.target, ast.Name)
    first = ast.parse(f"first = {ast.unparse(wait.value).replace(node.target.id, '0')}").body
    last = ast.parse(f"{ast.unparse(add.target)} += first.load()").body
    return ast.If(ast.Constant(True), [*first, node, *last], [])


Change = Callable[[ast.AST], ast.AST | None]
DAMAGES: dict[str, Change] = {
    "no wait": _without("wait"), "no claim": _without("claim"), "no notify": _without("notify"),
    "another rank": _at(_to_another), "own memory": _at(_to_itself, to_all=True), "another entry": _another_entry,
    "some notify": _sometimes, "twice": _twice, "no release": _unreleased, "early release": _released_early,
    "stale": _stale,
}  # fmt: skip


class _Damaging(ast.NodeTransformer):
    """Changes one place of those that can be; which one, `place` says, counted from 0."""

    def __init__(self, change: Change, place: int) -> None:
        self.change, self.place, self.places = change, place, 0

    def visit(self, node: ast.AST) -> Any:
        changed = self.change(node)
        if changed is not None:
            self.places += 1
            if self.places == self.place + 1:
                return changed
        return self.generic_visit(node)


def damaged(seed: int, *, small: bool = False) -> Case:
    """The program of a seed, or of one after it, with one thing wrong in it."""
    r = random.Random(seed)
    case = drawn(seed, small=small)
    kinds = [*DAMAGES, "output", "order"]
    r.shuffle(kinds)
    for kind in kinds:
        tree = ast.parse(case.source)
        launches = next(f for f in tree.body if isinstance(f, ast.FunctionDef) and f.name == "drawn")
        if kind in DAMAGES:
            counting = _Damaging(DAMAGES[kind], -1)
            counting.visit(tree)
            if not counting.places:
                continue
            _Damaging(DAMAGES[kind], r.randrange(counting.places)).visit(tree)
        elif kind == "output":
            made = [s for s in launches.body if isinstance(s, ast.Assign) and "buffers" not in ast.unparse(s)]
            if not made:
                continue
            buffer = r.choice(made)
            launches.body.remove(buffer)
            declared = ast.unparse(buffer.value).replace("tk.local", "tk.Local").replace("tk.sharded", "tk.Sharded")
            (name,) = (ast.unparse(n) for n in buffer.targets)
            launches.args.args.insert(0, ast.arg(name, ast.parse(declared, mode="eval").body))
            case.given = {name: Output(), **case.given}
        else:
            roles = [k for k, s in enumerate(launches.body) if isinstance(s, ast.Expr)]
            if len(roles) < 2:
                continue
            a, b = r.sample(roles, 2)
            launches.body[a], launches.body[b] = launches.body[b], launches.body[a]
        case.source, case.damage = ast.unparse(ast.fix_missing_locations(tree)) + "\n", kind
        return case
    return damaged(seed + 1_000_000, small=small)
