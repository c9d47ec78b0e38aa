"""The words of the language: what a tile function and a program may say.

A program is an ordinary function that is run once to record its buffers and roles. A tile function is never run:
its source is read (`frontend/elaboration/`), so the words used inside it are names, and calling them is an error.
"""

from tilelink.language.declarations import (
    RANKS_DIM,
    AxisWord,
    Declared,
    ExpertsWord,
    Local,
    RanksWord,
    RouteWord,
    Sharded,
    Space,
    TensorWord,
    locals,
    nodes,
    ranks,
)
from tilelink.language.members import Each, Function, Parameters, Variant, check_lists, lists_of, own_dims
from tilelink.language.recording import Launch, Recording, declarations, record, site_of
from tilelink.language.tile_functions import TileFunction, tile
from tilelink.language.words import (
    claim,
    copy,
    each,
    local,
    node,
    notify,
    place,
    rank,
    rank_at,
    release,
    route,
    sharded,
    steps,
    tiles,
    wait,
    world,
)

__all__ = [
    "RANKS_DIM", "AxisWord", "Declared", "Each", "ExpertsWord", "Function", "Launch", "Local", "Parameters",
    "RanksWord", "Recording", "RouteWord", "Sharded", "Space", "TensorWord", "TileFunction", "Variant", "check_lists",
    "claim", "copy", "declarations", "each", "lists_of", "local", "locals", "node", "nodes", "notify", "own_dims",
    "place", "rank", "rank_at", "ranks", "record", "release", "route", "sharded", "site_of", "steps", "tile", "tiles",
    "wait", "world",
]  # fmt: skip
