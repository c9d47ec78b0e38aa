"""All labelled programs. A suite is a module with a list of `CASES`."""

from tests.verification import atomic, conflict, sync
from tests.verification.cases import Case

CASES: list[Case] = [*conflict.CASES, *sync.CASES, *atomic.CASES]
