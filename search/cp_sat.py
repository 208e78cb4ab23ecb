"""Constraint programming (OR-Tools CP-SAT) for problems with a usage limit, with a proven bound.

Models: one Boolean per candidate, exactly one true per node; one Boolean per pair of row and
column classes of an edge matrix (rows that are equal form one class), tied to the candidates by
sums (the local polytope); one linear row per time step that no other step dominates.
Assumes: costs are floats and CP-SAT wants integers, so every cost is first lowered by the least of
its array, then divided by a unit and rounded down. The unit is the largest array spread over 2**30,
widened where needed so that all costs together stay below 2**60. Rounding down makes the integer
optimum a lower bound as it stands; an answer may be off by at most one unit per node and edge,
and is called optimal only where the bound so obtained reaches its recomputed cost.
"""
