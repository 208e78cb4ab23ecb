"""The solver to use when the shape of a problem is not known: it picks what is exact and fits.

Models: the order in which the other solvers are worth trying. Where the usage limit cannot bind, a
chain goes to shortest-path and anything else to elimination. Else the problem is solved without
its limit, then with prices on usage; candidates whose min-marginal at the best prices exceeds the
cost of the best assignment known are dropped (reduced-cost fixing), and CP-SAT closes the gap on
the core that is left. Where elimination refuses, CP-SAT works from a local optimum.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from search import cp_sat, elimination, lagrangian, shortest_path
from search.answers import RELATIVE_TOLERANCE, make_assignment, no_assignment, trivial_bound
from search.buckets import MAX_ELEMENTS, plan
from search.deadline import Deadline, OutOfTime
from search.dual import Dual, tighten
from search.improve import cheap_start
from search.infeasible import find_shortage, shortage_note, why_forbidden
from search.marginals import min_marginals
from search.presolve import Reduction, presolve
from search.problem import Assignment, Problem, ProblemError, Status

NAME = "auto"
