"""How long a test waits for what should come."""

import os
from typing import Final

GUARD: Final = float(os.environ.get("TEST_GUARD_S", "300"))
"""Seconds after which a test that waits in vain fails: no machine is so busy that they pass otherwise."""
