"""How long planning takes and how much memory, as whole processes."""
