"""Reads TTGIR, Triton's last form of a kernel before LLVM: what stands there stands there once, whatever is unrolled
later. Only what the gates ask for is understood: operations, where they come from, and what values depend on what."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

_VALUE = re.compile(r"%[\w-]+(?:#\d+)?")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


@dataclass(frozen=True)
class Operation:
    """An operation. `text`: its line, without what it is called and where it comes from. `assembly`: the code that it
    holds, or "". `operands`: the values it names, `address` those before the first comma that is not in brackets: what
    a load reads from. `where`: (file, line, column), the innermost call first."""

    name: str
    text: str
    assembly: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    address: tuple[str, ...]
    where: tuple[tuple[str, int, int], ...]

    def site(self, file: str) -> tuple[tuple[int, int], ...]:
        """Where it comes from in a file: (line, column) of the calls in it, the innermost first."""
        return tuple((line, column) for f, line, column in self.where if f == file)


class Kernel:
    """A kernel in TTGIR: its operations, and the `layouts` that have a name."""

    def __init__(self, text: str) -> None:
        self._locations = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.MULTILINE))
        self._known: dict[str, tuple[tuple[str, int, int], ...]] = {}
        self.layouts = dict(re.findall(r"^(#\w+) = (#ttg\.\w+<.*>)$", text, re.MULTILINE))
        self.operations: list[Operation] = []
        self._count = 0
        self._sources: dict[str, set[str]] = {}
        self._read(text)

    def named(self, *names: str) -> list[Operation]:
        """The operations of these names."""
        return [o for o in self.operations if o.name in names]

    def depends_on(self, values: Iterator[str] | tuple[str, ...]) -> set[str]:
        """The values that decide what these are, themselves included: as data, not by way of branches."""
        found: set[str] = set()
        left = list(values)
        while left:
            value = left.pop()
            if value not in found:
                found.add(value)
                left += self._sources.get(value, ())
        return found

    @cached_property
    def made_by(self) -> dict[str, Operation]:
        """The operation that makes a value."""
        return {r: o for o in self.operations for r in o.results}

    # ---- reading

    def _read(self, text: str) -> None:
        """Line by line. A name belongs to the region that it stands in: others may use it again."""
        self._scopes: list[dict[str, str]] = [{}]
        regions: list[_Region] = []
        for line in map(str.strip, text.splitlines()):
            bare = _STRING.sub('""', line).split(" loc(")[0].rstrip()
            if line.startswith("}") and regions:
                self._scopes.pop()
                if bare.endswith("{"):
                    self._scopes.append({})
                else:
                    regions.pop()
                continue
            made = self._operation(line, bare)
            if made is not None:
                self.operations.append(made)
                for result in made.results:
                    self._sources.setdefault(result, set()).update(made.operands)
                if regions and made.name in ("scf.yield", "scf.condition", "tt.reduce.return", "tt.scan.return"):
                    self._flow(regions[-1], made)
            elif line.startswith("^") and regions:
                for argument in _VALUE.findall(line.split(" loc(")[0]):
                    regions[-1].arguments.append(self._define(argument))
                    self._sources.setdefault(regions[-1].arguments[-1], set()).update(regions[-1].starts)
            if bare.endswith("{") and not line.startswith("module"):
                regions.append(self._region(made, bare))

    def _region(self, owner: Operation | None, bare: str) -> _Region:
        """A region begins: with what its loop carries, or with the arguments of the kernel."""
        head = bare.split(" = ", 1)[-1] if owner is not None and owner.results else bare
        carried = re.findall(r"(%[\w-]+) = (%[\w-]+(?:#\d+)?)", head)
        starts = [self._known_as(v) for v in _VALUE.findall(head) if v not in dict(carried)]
        outer = [(argument, self._known_as(start)) for argument, start in carried]
        self._scopes.append({})
        if owner is None:  # the kernel itself
            for argument in re.findall(r"%[\w-]+", bare):
                self._scopes[-1][argument] = argument
        around = [(self._define(argument), start) for argument, start in outer]
        for argument, start in around:
            self._sources[argument] = {start}
        if owner is not None and owner.name == "scf.for":  # the counter goes around, too, but is not handed on
            around = around[1:]
        return _Region(owner, around, starts, [])

    def _flow(self, region: _Region, end: Operation) -> None:
        """What a region hands on goes to the results of its operation, and around to what is carried."""
        owner = region.owner
        if owner is None:
            return
        if owner.name != "scf.for" and owner.name != "scf.if":
            for value in (*owner.results, *region.arguments, *(a for a, _ in region.carried)):
                self._sources.setdefault(value, set()).update(end.operands)
            return
        for k, value in enumerate(end.operands):
            self._sources.setdefault(owner.results[k], set()).add(value)
            if k < len(region.carried):
                argument, start = region.carried[k]
                self._sources[argument].add(value)
                self._sources[owner.results[k]].add(start)

    def _define(self, name: str) -> str:
        """A name that nothing else has, for a value that begins to be here."""
        self._count += 1
        self._scopes[-1][name] = f"{name}@{self._count}"
        return self._scopes[-1][name]

    def _known_as(self, value: str) -> str:
        name, sharp, number = value.partition("#")
        return next((s[name] for s in reversed(self._scopes) if name in s), name) + sharp + number

    def _operation(self, line: str, bare: str) -> Operation | None:
        found = re.match(r"(?:(%[\w-]+)(?::(\d+))? = )?(?:\"\" ?|([a-z_]+\.[\w.]+))", bare)
        if found is None or line.startswith(("module", "}", "tt.func")):
            return None
        result, count, name = found.groups()
        strings = [s[1:-1] for s in _STRING.findall(line)]
        name = name or strings[0]
        body = bare[found.end() :]
        # What a loop carries and yields goes its own ways; its results are no function of all it names.
        loops = name in ("scf.for", "scf.if", "scf.while")
        operands = () if loops else tuple(map(self._known_as, _VALUE.findall(body)))
        address = re.match(r"\s*(%[\w-]+(?:#\d+)?)(\[[^\]]*\])?", body)
        leading = len(_VALUE.findall(address[0])) if address else 0
        results: tuple[str, ...] = ()
        if result is not None:
            unique = self._define(result)
            results = (unique,) if count is None else tuple(f"{unique}#{k}" for k in range(int(count)))
        assembly = strings[0].replace("\\0A", "\n").replace("\\22", '"') if "inline_asm" in name else ""
        location = re.search(r" loc\((.*)\)$", line)
        where = self._where(location[1] if location else "")
        return Operation(name, body, assembly, results, operands, operands[:leading], where)

    def _where(self, location: str) -> tuple[tuple[str, int, int], ...]:
        """A location, resolved."""
        location = location.strip()
        if location not in self._known:
            self._known[location] = self._resolved(location)
        return self._known[location]

    def _resolved(self, location: str) -> tuple[tuple[str, int, int], ...]:
        if location in self._locations:
            return self._where(self._locations[location])
        if found := re.fullmatch(r'"([^"]*)":(\d+):(\d+)(?: to .*)?', location):
            return ((found[1], int(found[2]), int(found[3])),)
        if found := re.fullmatch(r"callsite\((#loc\d*) at (#loc\d*)\)", location):
            return self._where(found[1]) + self._where(found[2])
        if found := re.fullmatch(r'"[^"]*"\((#loc\d*)\)', location):
            return self._where(found[1])
        return ()


@dataclass
class _Region:
    """A region that is being read: whose it is, (argument, start) of what goes around in it, what its operation starts
    from, and its other arguments."""

    owner: Operation | None
    carried: list[tuple[str, str]]
    starts: list[str]
    arguments: list[str]
