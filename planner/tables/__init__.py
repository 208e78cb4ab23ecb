"""Measured tables in the forms in which others publish them, as tables of `--table`."""
