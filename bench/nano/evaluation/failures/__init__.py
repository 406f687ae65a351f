"""A page that shows wrong answers."""
