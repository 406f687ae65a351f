"""PyTorch for the CPU has no Triton: everything imports and answers without it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

SCRIPT = """
import importlib, importlib.util, pkgutil, sys

sys.modules["triton"] = None  # as if it were not installed
without = () if importlib.util.find_spec("ray") else ("photonlite.ray.router", "photonlite.ray.service")
import photonlite

for module in pkgutil.walk_packages(photonlite.__path__, "photonlite."):
    if not module.name.endswith("__main__") and module.name not in without:
        importlib.import_module(module.name)

from photonlite.kernels import triton_utils
from tests.serving import make_image, serve

assert not triton_utils.HAS_TRITON
with serve() as model:
    print(len(model.detect(make_image(0), "mug")["objects"]) > 0)
"""


@pytest.mark.long
def test_everything_is_imported_and_answers_without_triton() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=ROOT, timeout=300)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["True"]
