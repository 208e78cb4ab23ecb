"""Proof that a change changes nothing that a user can see: every byte of some 400 commands."""
