"""A training step on one timeline: its options, its machine, its time and its memory."""
