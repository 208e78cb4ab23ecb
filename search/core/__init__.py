"""The problem in flat arrays: bounds by message passing, and assignments near good prices."""
