"""Publishes inputs that peers read: they are copied to the symmetric heap before the run."""

from __future__ import annotations

from dataclasses import replace

from tilelink.errors import HomeError
from tilelink.frontend.ir import RANKS_DIM, Copy, TileProgram, every, walk
from tilelink.frontend.passes.elaborate import Binding


def publish(program: TileProgram, _: Binding) -> TileProgram:
    """The program with the inputs published that another rank reads. Raises HomeError if a rank may read another rank's
    output: outputs are memory of the caller, which peers do not reach."""
    read = set()
    for s in (s for role in program.roles for s in walk(role.body)):
        for view in (v for v in s.read if v.remote):
            tensor = program.tensor(view.tensor)
            if tensor.kind == "output":
                named = ("tk.ranks" if d == RANKS_DIM else f'"{d}"' for d in tensor.dims)
                dims = ", ".join(named) + (f", axis={tensor.sharded}" if tensor.sharded else "")
                word = "local" if tensor.sharded is None else "sharded"
                raise HomeError(
                    f"{view} may be another rank's output, and outputs are memory that peers can't read. Store what "
                    f"peers read to a buffer, tk.{word}({dims}), notify it there, and copy it to {view.tensor}",
                    s.site,
                )
            read.add(view.tensor)
    return _published(program, read)


def publish_sources(program: TileProgram) -> TileProgram:
    """The program for a network, which sends only from the symmetric heap: inputs that are copied to other ranks are
    published, too."""
    copies = (s for role in program.roles for s in every(Copy, role.body))
    return _published(program, {s.source.tensor for s in copies if s.target.remote} | {*program.published})


def _published(program: TileProgram, tensors: set[str]) -> TileProgram:
    return replace(program, published=tuple(t.name for t in program.inputs if t.name in tensors))
