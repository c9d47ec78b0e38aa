"""When a program that polls is parked: not before it has acted upon the last thing it saw."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tilelink.emulator.memory import Region, RegionMap
from tilelink.emulator.ordering import Moment, Strand, Who
from tilelink.emulator.programs import Poll, Program
from tilelink.emulator.sites import KernelSite

SITE = KernelSite("kernel.py", 1)


class TwoWords:
    """Two words of memory, and a program that looks at them."""

    def __init__(self) -> None:
        self.words = torch.zeros(2, dtype=torch.int64)
        self.regions = RegionMap([Region("words", 0, self.words, "signal")])
        launch: Any = None
        self.program = Program(launch, Strand(Who(0, ""), 0, Moment()))

    def look(self, word: int) -> bool:
        """Whether the program is parked after a look at a word."""
        address = np.array([self.words[word].data_ptr()], np.uint64)
        value = np.array([int(self.words[word])])
        (access,) = self.regions.locate(address, None, 8)
        return self.program.look(Poll(SITE, ((access, value),)))


def test_parked_when_it_saw_everything_twice() -> None:
    two = TwoWords()
    assert [two.look(word) for word in (0, 1, 0, 1)] == [False, False, False, True]
    assert two.program.is_current()
    two.words[0] = 1
    assert not two.program.is_current()


def test_one_word_is_enough_for_a_loop_over_one() -> None:
    two = TwoWords()
    assert [two.look(0), two.look(0)] == [False, True]


def test_not_parked_at_the_second_word_when_the_first_was_new() -> None:
    """A wait for the sum of two words ends after it: nothing need come any more."""
    two = TwoWords()
    for word in (0, 1, 0, 1):
        two.look(word)
    two.words[0] = 1
    assert [two.look(word) for word in (0, 1, 0)] == [False, False, True]


def test_not_parked_when_a_word_changes_between_two_looks() -> None:
    two = TwoWords()
    for word in (0, 1, 0):
        two.look(word)
    two.words[0] = 1  # after it was looked at: the next look at the other word is not the last
    assert not two.look(1)
    assert [two.look(word) for word in (0, 1, 0)] == [False, False, True]
