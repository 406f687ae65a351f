"""Low-rank terms of several adapters in one batch: each row is multiplied with the matrices of its own slot.

```
x [T, K] ── A of the row's slot ── [T, R] ── B of the row's slot ──> added to y [T, N]     slot 0: nothing
```
"""

from photonlite.kernels.reference.adapters import AdapterRows, AdapterStack, add_adapters

__all__ = ["AdapterRows", "AdapterStack", "add_adapters"]
