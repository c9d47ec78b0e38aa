"""Bugs that real projects shipped (Triton-distributed, flux, DeepEP and others with one-sided GPU kernels): each as a
program with the mistake, and its twin without it. `Case.bug` says what was wrong."""

from __future__ import annotations

from tests.verification import twins_of_kernels, twins_of_primitives, twins_of_programs
from tests.verification.cases import Case

CASES: list[Case] = [*twins_of_kernels.CASES, *twins_of_programs.CASES, *twins_of_primitives.CASES]
