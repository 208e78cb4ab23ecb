"""Cores as models of OR-Tools CP-SAT, solved a few rows at a time."""
