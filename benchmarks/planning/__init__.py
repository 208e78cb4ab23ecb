"""How fast planning is, and how near its plans are to the best there is."""
