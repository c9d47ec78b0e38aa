"""Runs generated Triton kernels of N ranks in one process on a CPU, deterministically, and checks them."""

from tilelink.emulator.errors import (
    DeadlockError,
    KernelError,
    LivelockError,
    OutOfBoundsError,
    RaceError,
    StuckProgram,
    UnstartedPrograms,
    Wait,
    WaitingHost,
)
from tilelink.emulator.execution import Admission, Execution
from tilelink.emulator.interpreter import InterpretedKernel, interpreted
from tilelink.emulator.memory import Box, Region
from tilelink.emulator.operation import Operation
from tilelink.emulator.policies import Pct, Policy, PolicyWord, Random
from tilelink.emulator.races import Party, Race
from tilelink.emulator.scheduler import Scheduler, Task
from tilelink.emulator.sites import KernelSite
from tilelink.emulator.words import Words

__all__ = [
    "DeadlockError", "KernelError", "LivelockError", "OutOfBoundsError", "RaceError",
    "StuckProgram", "UnstartedPrograms", "Wait", "WaitingHost",
    "Admission", "Box", "Execution", "InterpretedKernel", "KernelSite", "Operation", "Party", "Pct", "Policy",
    "PolicyWord", "Race", "Random", "Region", "Scheduler", "Task", "Words", "interpreted",
]  # fmt: skip
