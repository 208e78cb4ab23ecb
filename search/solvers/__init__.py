"""The solvers: a file each, found by their names."""
