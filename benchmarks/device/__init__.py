"""Measuring layers on this machine's GPU."""
