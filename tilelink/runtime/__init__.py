"""Worlds of ranks: heaps, slots, arguments, launches, and the execution on the CPU."""

from tilelink.runtime.cpu.world import CpuWorld
from tilelink.runtime.group import Group

__all__ = ["CpuWorld", "Group"]
