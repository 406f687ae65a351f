"""Batches of questions that are answered with JSON."""
