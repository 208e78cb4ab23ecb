"""Predicted steps against measured ones, on this machine."""
