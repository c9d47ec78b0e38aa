"""All labelled programs. A suite is a module with a list of `CASES`."""

from tests.verification import atomic, conflict, sync, twins
from tests.verification.cases import Case

CASES: list[Case] = [*conflict.CASES, *sync.CASES, *atomic.CASES, *twins.CASES]
