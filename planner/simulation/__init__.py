"""Run a step of a plan, a strategy or a network, operation by operation."""
