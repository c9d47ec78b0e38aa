"""`tilelink list`: the operators of the library."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tilelink.tools.cli.command import Answer, Command

if TYPE_CHECKING:
    from tilelink.programs.program import Program


def run(args: argparse.Namespace) -> Answer:
    """The operators of the library, their tensors and their schedules."""
    from tilelink.kernels import operators

    found = [_describe(p) for p in operators().values()]
    return Answer({"operators": found}, "\n".join(map(_paragraph, found)))


def _describe(program: Program) -> dict[str, Any]:
    """An operator, for `list`. The first schedule is the default one; of tensors with `each` a list may be given."""
    from tilelink.language import Each, Function

    tensors = [
        {
            "name": t.name, "kind": t.kind, "dims": list(t.dims),
            "sharded": None if t.sharded is None else t.dims[t.sharded], "optional": t.name in program.optional,
            "each": isinstance(program.declared[t.name], Each),
        }
        for t in program.recorded().tensors if t.kind != "buffer"
    ]  # fmt: skip
    functions = [n for n, p in program.declared.items() if p == Function]
    summary = (program.__doc__ or "").strip().split("\n")[0]
    return {
        "name": program.name, "summary": summary, "tensors": tensors, "functions": functions,
        "schedules": list(program.schedules),
    }  # fmt: skip


def _paragraph(operator: dict[str, Any]) -> str:
    def tensor(t: dict[str, Any]) -> str:
        dims = ", ".join(f"{d}/world" if d == t["sharded"] else d for d in t["dims"])
        return ("each " if t["each"] else "") + f"{t['name']}[{dims}]" + (" (optional)" if t["optional"] else "")

    by_kind = {k: ", ".join(tensor(t) for t in operator["tensors"] if t["kind"] == k) for k in ("input", "output")}
    default, *others = operator["schedules"] or ["none"]
    lines = [operator["summary"], f"{by_kind['input']} -> {by_kind['output']}"]
    lines += [f"functions: {', '.join(operator['functions'])}"] if operator["functions"] else []
    lines.append(f"schedules: {', '.join([f'{default} (default)' if others else default, *others])}")
    return "".join([f"{operator['name']}\n", *(f"    {line}\n" for line in lines if line)])


COMMAND = Command(run, "tilelink list --json")
