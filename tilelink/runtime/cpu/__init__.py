"""Runs generated Triton kernels of N ranks in one process on a CPU, deterministically, and checks them."""

from tilelink.runtime.cpu.errors import (
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
from tilelink.runtime.cpu.execution import Admission, Execution
from tilelink.runtime.cpu.interpreter import InterpretedKernel, interpreted
from tilelink.runtime.cpu.memory import Box, Region
from tilelink.runtime.cpu.policies import Pct, Policy, PolicyWord, Random, RoundRobin
from tilelink.runtime.cpu.races import Party, Race
from tilelink.runtime.cpu.scheduler import Scheduler, Task
from tilelink.runtime.cpu.sites import KernelSite
from tilelink.runtime.cpu.trace import Operation
from tilelink.runtime.cpu.words import Words

__all__ = [
    "Admission",
    "Box",
    "DeadlockError",
    "Execution",
    "InterpretedKernel",
    "KernelError",
    "KernelSite",
    "LivelockError",
    "Operation",
    "OutOfBoundsError",
    "Party",
    "Pct",
    "Policy",
    "PolicyWord",
    "Race",
    "RaceError",
    "Random",
    "Region",
    "RoundRobin",
    "Scheduler",
    "StuckProgram",
    "Task",
    "UnstartedPrograms",
    "Wait",
    "WaitingHost",
    "Words",
    "interpreted",
]
