"""The run protocol as a model small enough to take every interleaving of its steps.

What a run may do is in `kinds.py`, the rules in `rules.py`, the rules as the steps of one rank in `steps.py`, the
search in `enumeration.py`, what is searched in `lanes.py`, and the broken rules in `mutants.py`. `docs/protocol.md`
explains them and draws the conclusions; `python -m tests.runtime.protocol_model` prints the tables of that page.

Steps are atomic and memory is sequentially consistent. The payload of a store is the number of the run that stores, so
a read that gets another run's data is seen; so are two accesses that nothing orders. All words are zero at first.
"""
