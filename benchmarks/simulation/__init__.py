"""How long simulating takes, and all step models on the same steps."""
