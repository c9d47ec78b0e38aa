"""What makes a tile program of a recording, one after the other: each is a function from tile program to tile program.

A pass fills what a later one reads, or rewrites roles. A new one is a file here and a name in `PASSES` of `binding.py`.
"""
