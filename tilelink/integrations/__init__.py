"""Plugs for other frameworks: each module imports its framework only when one of its functions is called.

See docs/experts.md.
"""
