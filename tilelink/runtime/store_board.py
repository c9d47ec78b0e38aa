"""The board of a group whose hosts share no memory: it is `board.py` in torch's store."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from tilelink.runtime.board import Post

NOTHING = -1


class StoreBoard:
    """Has the methods of `Board`. It does not count memory operations, because no host waits while kernels of others
    move. `store`: the store of this lane, which no other lane uses."""

    def __init__(self, store: Any, rank: int, world: int) -> None:
        self.store, self.rank, self.world = store, rank, world

    def heartbeats(self) -> tuple[int, ...]:
        return (0,) * self.world

    # ---- calls

    def post(self, post: Post) -> None:
        self._set(f"post {post.number % 2}", json.dumps([post.number, dict(post.values)]))

    def posted(self, rank: int, number: int) -> bool:
        return self._number(rank, number % 2) >= number

    def read(self, rank: int, number: int) -> Post:
        found, values = json.loads(self._get(f"post {number % 2}", rank))
        return Post(found, values)

    def calls(self, rank: int) -> int:
        return 1 + max(self._number(rank, side) for side in range(2))

    def forget_calls(self) -> None:
        for side in range(2):
            self._set(f"post {side}", json.dumps([NOTHING, {}]))

    def _number(self, rank: int, side: int) -> int:
        said = self._get(f"post {side}", rank)
        return int(json.loads(said)[0]) if said else NOTHING

    # ---- notes, ends, resets

    def note(self, text: str) -> None:
        self._set("note", text)

    def note_of(self, rank: int) -> str:
        return self._get("note", rank)

    def end(self) -> None:
        """Says that this rank makes no more calls. The store may be gone when a process ends."""
        with suppress(RuntimeError):
            self._set("ended", "1")

    def ended(self, rank: int) -> bool:
        return bool(self._get("ended", rank))

    def enter_phase(self, phase: int) -> None:
        self._set("phase", str(phase))

    def in_phase(self, rank: int, phase: int) -> bool:
        return int(self._get("phase", rank) or 0) >= phase

    # ---- texts

    def _set(self, what: str, text: str) -> None:
        self.store.set(f"{what}/{self.rank}", text)

    def _get(self, what: str, rank: int) -> str:
        key = f"{what}/{rank}"
        return str(self.store.get(key).decode()) if self.store.check([key]) else ""
