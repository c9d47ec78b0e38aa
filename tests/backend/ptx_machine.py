"""One lane of one warp that executes PTX: as much of it as our inline assembly uses."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

COMPARE = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "ge": operator.ge}
ARITHMETIC = {"add": operator.add, "sub": operator.sub, "shl": operator.lshift, "and": operator.and_}


class ExitError(Exception):
    """The thread has ended."""


SPECIAL = {"%tid", "%laneid", "%ctaid", "%globaltimer"}


class Machine:
    """Executes inline assembly on `memory`, words by address. `special`: values of registers such as %laneid, or
    functions that give them. `on_load` is called with the address before each load; `log` has every memory operation,
    fence and barrier. `others`: how the other threads vote in one."""

    others = 0

    def __init__(
        self, memory: dict[int, int], special: Mapping[str, int | Callable[[], int]], on_load: Callable[[int], None]
    ) -> None:
        self.memory, self.special, self.on_load = memory, special, on_load
        self.log: list[tuple[Any, ...]] = []
        self.registers: dict[str, int] = {}

    def run(self, text: str, *operands: int, steps: int = 1_000_000) -> int:
        """Executes `text` with values of $1, $2, ...; returns $0."""
        self.registers = {f"${k}": v for k, v in enumerate(operands, 1)}
        lines, labels = _parse(text)
        at = 0
        for _ in range(steps):
            if at == len(lines):
                return self.registers["$0"]
            at = self._step(lines[at], at, labels)
        raise TimeoutError(f"{steps} instructions, at {lines[at]}")

    def _step(self, line: str, at: int, labels: Mapping[str, int]) -> int:
        if guard := re.match(r"@(!?)(%\w+) (.*)", line):
            if bool(self.registers[guard[2]]) == bool(guard[1]):
                return at + 1
            line = guard[3]
        name, _, rest = line.partition(" ")
        kind, *parts = name.split(".")
        to, *given = [r.strip() for r in rest.split(",")]
        if kind == "bra":
            return labels[to]
        if kind in ("bar", "fence"):
            self.log.append((name,))
        elif kind == "barrier":
            self.log.append((name,))
            self.registers[to] = self.value(given[1]) | self.others
        elif kind == "nanosleep":
            self.log.append((name, self.value(to)))
        elif kind == "exit":
            raise ExitError
        elif kind == "ld":
            address = self._address(given[0])
            self.on_load(address)
            self.log.append((name, address))
            self.registers[to] = self.memory[address]
        elif kind == "st":
            self.log.append((name, self._address(to), self.value(given[0])))
            self.memory[self._address(to)] = self.value(given[0])
        elif kind == "atom":
            address, (old, new) = self._address(given[0]), map(self.value, given[1:])
            self.log.append((name, address))
            self.registers[to] = self.memory[address]
            if self.memory[address] == old:
                self.memory[address] = new
        elif kind == "setp":
            self.registers[to] = int(COMPARE[parts[0]](*map(self.value, given)))
        elif kind in ARITHMETIC:
            self.registers[to] = ARITHMETIC[kind](*map(self.value, given))
        else:
            assert kind in ("mov", "cvt"), line
            self.registers[to] = self.value(given[0])
        return at + 1

    def _address(self, text: str) -> int:
        base, _, offset = text.strip("[]").partition("+")
        return self.value(base) + int(offset or 0)

    def value(self, text: str) -> int:
        if text in self.special:
            found = self.special[text]
            return found if isinstance(found, int) else found()
        return self.registers[text] if text[0] in "%$" else int(text, 0)


def _parse(text: str) -> tuple[list[str], dict[str, int]]:
    lines: list[str] = []
    labels: dict[str, int] = {}
    for part in re.split(r";|(?<=:)\s", text.replace("${:uid}", "0").strip().strip("{}")):
        line = part.strip()
        if line.endswith(":"):
            labels[line[:-1]] = len(lines)
        elif line and not line.startswith((".reg", "//")):
            lines.append(line)
    return lines, labels


def undefined(text: str) -> list[str]:
    """The instructions that read a register which some path to them leaves unassigned. (ptxas may give such a register
    to another value on the paths that do assign it.)"""
    lines, labels = _parse(text)
    known: dict[int, frozenset[str]] = {0: frozenset()}
    wrong, to_look = set[str](), [0]
    while to_look:
        at = to_look.pop()
        if at == len(lines):
            continue
        guard, line = re.fullmatch(r"(@!?%\w+ )?(.*)", lines[at]).groups()  # type: ignore[union-attr]
        name, _, rest = line.partition(" ")
        kind = name.split(".")[0]
        writes = kind not in ("st", "bra", "bar", "fence", "nanosleep", "exit")
        to, given = (rest.partition(",")[0].strip(), rest.partition(",")[2]) if writes else ("", rest)
        own = set(re.findall(r"%\w+", (guard or "") + given)) - SPECIAL
        if not own <= known[at]:
            wrong.add(lines[at])
        after = known[at] | ({to} if to and not guard else set())
        ways = [labels[rest.strip()]] if kind == "bra" else []
        ways += [at + 1] if guard or kind not in ("bra", "exit") else []
        for way in ways:
            found = after & known[way] if way in known else after
            if found != known.get(way):
                known[way] = found
                to_look.append(way)
    return sorted(wrong)
