"""Painters of training backgrounds."""
