"""Bugs that real projects shipped (Triton-distributed, flux, DeepEP and others with one-sided GPU kernels): each as a
program with the mistake, and its twin without it. `Case.bug` says what was wrong.

Ten of them by the threads that tell of them: handles with a parity each (nccl-extensions issue 6), groups on one pad
(pytorch 192581), a barrier of two streams (pytorch 189228), offsets that differ by rank (sglang 34230), a stage without
a proxy fence (DeepEP 642), grids in other orders (DeepEP 496), a lock that is not atomic to peers (vLLM 47979), a proxy
that erases a flag (nccl 2389), a budget cleared early (Megatron-LM 6999), two dots into one sum (triton 10821).
"""

from __future__ import annotations

from tests.verification import twins_of_kernels, twins_of_primitives, twins_of_programs
from tests.verification.cases import Case

CASES: list[Case] = [*twins_of_kernels.CASES, *twins_of_programs.CASES, *twins_of_primitives.CASES]
