"""The benchmark harness: `python -m bench`, and `python -m bench compare A B` of two results.

Without a flag it checks every program at a small shape and predicts times at the paper's shapes (`overview.py`).

On the CPU kernels are executed by Triton's interpreter, whose time says nothing of a GPU's. What can be measured here
is whether results are right, and, with --full, the logical makespan: memory operations on the longest chain of
dependences. It tells what overlaps what, under the assumption that every operation costs the same, whatever its size
and wherever it goes.

The picture in README.md, docs/images/all_gather_matmul_push.png, is the PNG of push at qkv that
`make bench ARGS=--full` leaves.
"""
