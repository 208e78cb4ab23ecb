"""The searches of a core: by exact elimination where it is narrow, by messages where it is wide."""
