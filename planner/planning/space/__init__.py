"""The candidates of every layer, what they cost, and what shuffles between them take."""
