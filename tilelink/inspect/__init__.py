"""Compiled code, looked at without a GPU: compiling for a target, and gates that hold what came out to its program."""
