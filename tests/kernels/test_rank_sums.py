import importlib.util

import pytest

from tests.conftest import Ended


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.long
@pytest.mark.program("tests.kernels.interpreter", "tests.kernels.interpreted_rank_sums")
def test_the_kernel_adds_up_what_ranks_write_in_tritons_interpreter(ended: Ended) -> None:
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "agree" in ended.stdout
