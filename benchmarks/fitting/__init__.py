"""Fits of efficiency surfaces to published kernel timings."""
