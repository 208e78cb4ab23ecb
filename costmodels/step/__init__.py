"""A training step on one timeline: how it is trained, on what, how long it takes, what it holds."""
