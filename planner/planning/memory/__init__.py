"""What a device holds at every moment of a step, and what a byte costs there."""
