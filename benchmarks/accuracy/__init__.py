"""How well steps are predicted that others have measured."""
