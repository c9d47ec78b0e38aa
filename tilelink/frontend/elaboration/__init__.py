"""Turns the source of a tile function into statements of a tile program: every name resolved, every view typed.

Tile functions are read only here. Unrolling and lowering both start from the result, so they can't drift apart.
Expressions known before the run (tiles, views, ranges, integers, ranks) become values of `values.py` and sympy.
Expressions that Triton computes stay source text, with holes for loads and integers.

The reader is one class in layers, a file each, because it is recursive: `source`, `views`, `reading`, `triton_calls`,
`calls`, `statements`.
"""
