"""Studies: many questions, asked by many workers that share one storage."""
