"""`verify`: what a checkpoint computes on this machine, beside other ways to compute the same."""

from photonlite.verification.checks import Row, verify

__all__ = ["Row", "verify"]
