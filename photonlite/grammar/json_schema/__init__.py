"""JSON Schema to patterns."""
