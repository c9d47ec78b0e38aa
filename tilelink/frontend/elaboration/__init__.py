"""From the source of a tile function to statements of a tile program: every name resolved, every view typed.

The one reader of tile functions: unrolling and lowering both start from what comes out, so they can't drift apart.
Expressions fall into two kinds. What TileLink knows before the run (tiles, views, ranges, integers, ranks) becomes
values of `values.py` and sympy; what Triton computes stays source text, with holes for loads and integers.

One class in layers, a file each, because reading is recursive: `source`, `views`, `reading`, `calls`, `statements`.
"""
