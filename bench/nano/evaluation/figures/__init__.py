"""Figures of an evaluation."""
