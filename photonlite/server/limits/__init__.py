"""Who may ask, how much at a time, and who is next at the engine."""
