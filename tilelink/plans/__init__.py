"""Plans: the ways in which an operator can be computed, by a program in one of its schedules or by plain torch; and
which of them is predicted to be the fastest on a machine.

    choose("linear_reduce_scatter", M=2048, N=4096, K=512, world=8, machine="h800").plan
"""

from tilelink.plans.choose import MARGIN, Choice, choose
from tilelink.plans.forms import Form
from tilelink.plans.names import AUTO, TORCH, plans

__all__ = ["AUTO", "MARGIN", "TORCH", "Choice", "Form", "choose", "plans"]
