"""Routes: what answers each path."""
