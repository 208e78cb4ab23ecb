"""Smaller problems with the same optimum, and the way there and back."""
