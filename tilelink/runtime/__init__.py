"""Worlds of ranks: heaps, slots, arguments, launches, and the execution on the CPU."""

from tilelink.runtime.cpu_world import CpuWorld, Group

__all__ = ["CpuWorld", "Group"]
