"""The benchmark harness: `python -m bench`, and `python -m bench compare A B` of two results.

Without a flag it checks every program at a small shape and predicts times at the paper's shapes (`overview.py`).

On the CPU, Triton's interpreter executes the kernels; its time says nothing about a GPU. The harness can measure here
whether results are right and, with --full, the logical makespan: the number of memory operations on the longest chain
of dependences. The makespan shows what overlaps, if every operation costs the same, regardless of its size and target.

`make bench ARGS=--full` also writes docs/images/all_gather_matmul_push.png, the picture in README.md: it is the PNG of
push at qkv.
"""
