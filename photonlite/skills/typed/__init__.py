"""Answers held to a schema, a pattern or a list of choices."""
