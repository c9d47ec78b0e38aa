"""Targets: modules of primitives that lowered kernels import. `portable` is the one that runs everywhere."""
