"""Reads TTGIR, Triton's last form of a kernel before LLVM, where each operation occurs once, whatever is unrolled
later. It reads only what the gates need: operations, their source, their regions, and which values depend on which."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

_VALUE = re.compile(r"%[\w-]+(?:#\d+)?")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


@dataclass(frozen=True)
class Operation:
    """An operation. `text`: its line, without name and location. `assembly`: the assembly code in it, or "".
    `operands`: the values that it names; `address`: those before the first comma outside brackets, which a load reads
    from. `where`: (file, line, column), the innermost call first. `regions`: the regions in it, in order."""

    name: str
    text: str
    assembly: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    address: tuple[str, ...]
    where: tuple[tuple[str, int, int], ...]
    regions: list[Region] = field(default_factory=list, compare=False, repr=False)

    def site(self, file: str) -> tuple[tuple[int, int], ...]:
        """Its location in a file: (line, column) of the calls in that file, the innermost first."""
        return tuple((line, column) for f, line, column in self.where if f == file)


@dataclass(eq=False)
class Region:
    """A region. `owner`: the operation that has it; None for the kernel's. `carried`: (argument, start) of values that
    a loop or partition receives. `starts`, `arguments`: all others. `operations`: without the ones of inner regions."""

    owner: Operation | None
    carried: list[tuple[str, str]]
    starts: list[str]
    arguments: list[str] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)

    @property
    def handed_on(self) -> list[tuple[str, str]]:
        """The carried values without the counter of a loop, which a region does not hand on."""
        return self.carried[1:] if self.owner is not None and self.owner.name == "scf.for" else self.carried

    @property
    def yields(self) -> tuple[str, ...]:
        """The values that the region hands on at its end."""
        return self.operations[-1].operands if self.operations and self.operations[-1].name == "scf.yield" else ()

    def names(self) -> Iterator[str]:
        """Yields the values that are defined in the region."""
        yield from (argument for argument, _ in self.carried)
        for o in self.operations:
            yield from o.results
            for region in o.regions:
                yield from region.names()


ENDS = ("scf.yield", "scf.condition", "tt.reduce.return", "tt.scan.return")


class Kernel:
    """A kernel in TTGIR: all operations, its body as a region, and the `layouts` that have a name."""

    def __init__(self, text: str) -> None:
        self._locations = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.MULTILINE))
        self._where = cache(self._resolved)
        self.layouts = dict(re.findall(r"^(#\w+) = (#ttg\.\w+<.*>)$", text, re.MULTILINE))
        self.operations: list[Operation] = []
        self.body = Region(None, [], [])
        self._count = 0
        self._read(text)

    def named(self, *names: str) -> list[Operation]:
        """The operations with these names."""
        return [o for o in self.operations if o.name in names]

    def depends_on(self, values: Iterable[str]) -> set[str]:
        """The values that these values are made from, themselves included: by data, not by branches."""
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
        """The operation that makes each value."""
        return {r: o for o in self.operations for r in o.results}

    @cached_property
    def _sources(self) -> dict[str, set[str]]:
        """The sources of each value: operands of its operation, and values that regions receive and hand on."""
        sources: dict[str, set[str]] = defaultdict(set)
        for o in self.operations:
            for result in o.results:
                sources[result].update(o.operands)
            for region in o.regions:
                for argument, start in region.carried:
                    sources[argument].add(start)
                if o.name != "scf.while":
                    for argument in region.arguments:
                        sources[argument].update(region.starts)
                if region.operations and region.operations[-1].name in ENDS:
                    self._hand_on(sources, o, region, region.operations[-1].operands)
        return sources

    def _hand_on(self, sources: dict[str, set[str]], o: Operation, region: Region, values: tuple[str, ...]) -> None:
        """Adds the values that a region hands on to the sources of its operation's results and carried values."""
        if o.name == "scf.while":
            condition, body = o.regions
            to = [argument for argument, _ in condition.carried]
            if region is condition:
                values, to = values[1:] * 2, [*o.results, *body.arguments]
            for argument, value in zip(to, values, strict=True):
                sources[argument].add(value)
            return
        if o.name not in ("scf.for", "scf.if"):
            for value in (*o.results, *region.arguments, *(a for a, _ in region.carried)):
                sources[value].update(values)
            return
        for result, value in zip(o.results, values, strict=True):
            sources[result].add(value)
        for result, value, (argument, start) in zip(o.results, values, region.handed_on, strict=False):
            sources[argument].add(value)
            sources[result].add(start)

    # ---- reading

    def _read(self, text: str) -> None:
        """Reads the text line by line. A name belongs to its region, because other regions may use it again."""
        self._scopes: list[dict[str, str]] = [{}]
        regions: list[Region] = []
        for line in map(str.strip, text.splitlines()):
            bare = _STRING.sub('""', line).split(" loc(")[0].rstrip()
            if line.startswith("}") and regions:
                last = regions.pop()
                self._scopes.pop()
                if bare.endswith("{"):  # an else, or a do
                    self._scopes.append({})
                    self._begin(regions, replace(last, arguments=[], operations=[]))
                continue
            made = self._operation(line, bare)
            if made is not None:
                self.operations.append(made)
                (regions[-1] if regions else self.body).operations.append(made)
            elif line.startswith("^") and regions:
                regions[-1].arguments += map(self._define, re.findall(r"(%[\w-]+): ", line))
            if re.match(r"default \{|partition\d+\(", line):  # warps that run separate code, in the last operation
                self._begin(regions, self._partition(self.named("ttg.warp_specialize")[-1], line))
            elif bare.endswith("{") and not line.startswith("module"):
                self._begin(regions, self._region(made, bare))

    def _begin(self, regions: list[Region], region: Region) -> None:
        regions.append(region)
        if region.owner is None:
            self.body = region
        else:
            region.owner.regions.append(region)

    def _region(self, owner: Operation | None, bare: str) -> Region:
        """Begins a region, with the values that its loop carries, or with the arguments of the kernel."""
        head = bare.split(" = ", 1)[-1] if owner is not None and owner.results else bare
        carried = re.findall(r"(%[\w-]+) = (%[\w-]+(?:#\d+)?)", head)
        starts = [self._known_as(v) for v in _VALUE.findall(head) if v not in dict(carried)]
        outer = [(argument, self._known_as(start)) for argument, start in carried]
        self._scopes.append({})
        if owner is None:  # the kernel itself
            self._scopes[-1] |= {argument: argument for argument in re.findall(r"%[\w-]+", bare)}
        around = [(self._define(argument), start) for argument, start in outer]
        return Region(owner, around, starts)

    def _partition(self, owner: Operation, line: str) -> Region:
        """Begins the region of some of the warps, which has its own names for the values that it receives."""
        self._scopes.append({})
        given = map(self._define, re.findall(r"(%[\w-]+): ", line))
        return Region(owner, list(zip(given, owner.operands, strict=False)), [])

    def _define(self, name: str) -> str:
        """A name that nothing else has, for a value that is defined here."""
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
        # A loop's results do not depend on all values that it names: regions say which values it carries and yields.
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

    def _resolved(self, location: str) -> tuple[tuple[str, int, int], ...]:
        """A location as (file, line, column), the innermost call first."""
        location = location.strip()
        if location in self._locations:
            return self._where(self._locations[location])
        if found := re.fullmatch(r'"([^"]*)":(\d+):(\d+)(?: to .*)?', location):
            return ((found[1], int(found[2]), int(found[3])),)
        if found := re.fullmatch(r"callsite\((#loc\d*) at (#loc\d*)\)", location):
            return self._where(found[1]) + self._where(found[2])
        if found := re.fullmatch(r'"[^"]*"\((#loc\d*)\)', location):
            return self._where(found[1])
        return ()
