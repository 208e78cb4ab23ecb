"""Measured training of transformers beside predictions, from files of rows in known columns."""
