import io
import sys
import types

import numpy as np
import pytest
from PIL import Image, ImageStat

from photonlite.images.thumbnail import MAX_BYTES, MAX_SIDE, in_notebook, make_thumbnail


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize(("size", "most"), [((3000, 1000), MAX_SIDE), ((4, 3000), MAX_SIDE), ((60, 40), 60)])
def test_a_thumbnail_is_bounded_in_pixels_and_bytes(size: tuple[int, int], most: int) -> None:
    data = make_thumbnail(noise(*size))
    with Image.open(io.BytesIO(data)) as small:
        assert max(small.size) <= most
        assert small.width >= 1
        assert small.format == "JPEG"
    assert len(data) <= MAX_BYTES


def test_a_thumbnail_keeps_shape_and_colours() -> None:
    with Image.open(io.BytesIO(make_thumbnail(Image.new("RGB", (1600, 1200), (200, 60, 20))))) as small:
        assert small.size == (512, 384)
        assert ImageStat.Stat(small).mean == pytest.approx([200, 60, 20], abs=3)


def test_a_notebook_is_a_shell_with_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("IPython")
    monkeypatch.setitem(sys.modules, "IPython", module)
    assert not in_notebook()
    for shell, known in ((None, False), (types.SimpleNamespace(), False), (types.SimpleNamespace(kernel=1), True)):
        monkeypatch.setattr(module, "get_ipython", lambda shell=shell: shell, raising=False)
        assert in_notebook() is known
    monkeypatch.delitem(sys.modules, "IPython")
    assert not in_notebook()
