"""Run a plan on a few ranks, and compare with one process."""
