"""Prints the tables of docs/protocol.md: `python -m tests.runtime.protocol_model`."""

from tests.runtime.protocol_model.lanes import FAMILIES, WEAKER
from tests.runtime.protocol_model.mutants import MUTANTS
from tests.runtime.protocol_model.rules import Rules

for family in FAMILIES:
    print(family.row())
for family in WEAKER:
    print(family.row(Rules(credit=family.name)))
for mutant in MUTANTS:
    print(mutant.row())
