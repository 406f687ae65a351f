"""Users' regular expressions to patterns of outlines-core."""
