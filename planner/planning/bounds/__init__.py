"""Additive problems: what bounds a step, and the assignments that they propose."""
