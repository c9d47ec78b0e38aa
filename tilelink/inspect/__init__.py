"""Compiled code, read without a GPU: it is compiled for a target, and gates compare it with its program."""
