"""Measures on this machine what a question rests on, as a table of `--table`."""
