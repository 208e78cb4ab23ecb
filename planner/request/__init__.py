"""What was asked: inputs, strategies and files, checked, found and filled in once."""
