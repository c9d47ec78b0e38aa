"""The passes that make a tile program of a recording, in order: functions from tile program to tile program.

A pass fills fields that a later pass reads, or rewrites roles. A new one is a file here and a name in `PASSES` of
`binding.py`.
"""
