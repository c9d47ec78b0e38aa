"""What is kept by key: so many values, those that were used last."""

from __future__ import annotations

from tilelink.frontend.kept import Kept


def test_the_oldest_goes() -> None:
    kept: Kept[str, int] = Kept(2)
    assert kept.put("a", 1) == kept.put("b", 2) == []
    assert kept.put("c", 3) == [1]
    assert "a" not in kept and kept.get("a") is None
    assert list(kept.values()) == [2, 3] and len(kept) == 2


def test_what_is_used_stays() -> None:
    kept: Kept[str, int] = Kept(2)
    kept.put("a", 1), kept.put("b", 2)
    assert kept.get("a") == 1
    assert kept.put("c", 3) == [2]
    assert kept.put("a", 4) == [] and list(kept.values()) == [3, 4]
