"""The command line. Everything that takes long to import is imported inside the commands."""
