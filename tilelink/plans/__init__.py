"""Plans: the ways to compute an operator (a program in one of its schedules, or plain torch), and the choice of the
plan that is predicted to be the fastest on a machine.

    choose("linear_reduce_scatter", M=2048, N=4096, K=512, world=8, machine="h800").plan
"""

from tilelink.plans.choose import MARGIN, Choice, choose
from tilelink.plans.forms import Form
from tilelink.plans.names import AUTO, TORCH, plans

__all__ = ["AUTO", "MARGIN", "TORCH", "Choice", "Form", "choose", "plans"]
