"""Exact elimination of nodes: minima, min-marginals, rankings, and prices that rest on it."""
