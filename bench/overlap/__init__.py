"""Encoding and decoding side by side on one card."""
