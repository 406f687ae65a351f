import importlib.util

import pytest
import torch

from bench.nano.scenes.batched.blend import Objects, blend, measure, reach, reference_blend
from bench.nano.scenes.batched.blend_kernel import triton_blend
from tests.conftest import Ended
from tests.tiny import CPU


def objects_of(transform, darkness=0.0, drop=0.0):
    tint = torch.eye(3, 4).expand(1, 1, 3, 4)
    first = torch.zeros(1, 1, dtype=torch.long)
    return Objects(first, first, transform[None, None], tint, torch.tensor([[drop]]), torch.tensor([[darkness]]))


def white(side=8):
    return torch.ones(2, 1, side, side, 4)


def test_a_sprite_covers_what_it_should_and_is_measured():
    # Twice as small as the image, in its middle.
    objects = objects_of(torch.tensor([[2.0, 0, 0], [0, 2.0, 0]]))
    canvas, owner, seen = blend(torch.zeros(1, 3, 16, 24), white(), objects)
    assert bool((owner[0, 4:12, 6:18] == 0).all())
    assert int((owner == 0).sum()) == 8 * 12
    assert float(canvas[0, :, 8, 12].min()) == 1
    assert not canvas[0, :, 0].any()
    assert [int(field) for field in seen] == [96, 4 * 24 + 6, 6, 17, 11]


def test_a_shadow_falls_to_the_right_and_down():
    transform = torch.tensor([[2.0, 0, 0], [0, 2.0, 0]])
    canvas, _ = reference_blend(torch.ones(1, 3, 16, 16), white(), objects_of(transform, darkness=0.5, drop=0.25))
    assert canvas[0, 0, 13, 13] == 0.5
    assert canvas[0, 0, 2, 2] == 1


def test_tints_never_exceed_what_alpha_allows():
    texels = white() * 0.5
    objects = objects_of(torch.tensor([[1.0, 0, 0], [0, 1.0, 0]]))._replace(tint=torch.full((1, 1, 3, 4), 3.0))
    canvas, _ = reference_blend(torch.zeros(1, 3, 8, 8), texels, objects)
    assert float(canvas.max()) == pytest.approx(0.5)
    canvas, _ = reference_blend(torch.ones(1, 3, 8, 8), texels, objects._replace(tint=-objects.tint))
    assert float(canvas[0, :, 4, 4].min()) == pytest.approx(0.5)


def test_measuring_tells_what_has_no_pixel():
    seen = measure(torch.full((1, 4, 4), -1, dtype=torch.int8), 2)
    assert seen.pixels.tolist() == [[0, 0]]


@pytest.mark.parametrize("darkness", [0.0, 0.5])
def test_reach_holds_all_that_an_object_changes(darkness):
    torch.manual_seed(0)
    for _ in range(20):
        transform = torch.randn(2, 3) * torch.tensor([2.5, 2.5, 1.0])
        objects = objects_of(transform, darkness, drop=0.4)
        canvas, _ = reference_blend(torch.zeros(1, 3, 32, 40) + 0.3, white() * 0.9, objects)
        left, top, right, bottom = reach(objects, torch.Size((1, 3, 32, 40)), 8)[0, 0].clamp(min=0).tolist()
        canvas[:, :, top:bottom, left:right] = 0.3
        assert bool((canvas == 0.3).all())


def test_the_kernel_refuses_what_it_would_misread():
    objects = objects_of(torch.eye(2, 3))
    with pytest.raises(ValueError, match="float16"):
        triton_blend(torch.zeros(1, 3, 8, 8), white().half(), objects, torch.zeros(1, 1, 4, dtype=torch.int32))
    with pytest.raises(ValueError, match="contiguous"):
        triton_blend(torch.zeros(1, 3, 8, 8).mT, white(), objects, torch.zeros(1, 1, 4, dtype=torch.int32))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.long
@pytest.mark.program("tests.kernels.interpreter", "tests.nano.scenes.batched.interpreted")
def test_the_kernels_agree_with_pytorch_in_tritons_interpreter(ended: Ended):
    # The interpreter is chosen when Triton is imported, which another test of this process may have done.
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "agree" in ended.stdout


def test_nothing_to_lay_leaves_the_canvas_as_it_was():
    objects = objects_of(torch.eye(2, 3))._replace(label=torch.full((1, 1), -1))
    canvas, owner, _ = blend(torch.full((1, 3, 8, 8), 0.4, device=CPU), white(), objects)
    assert bool((canvas == 0.4).all())
    assert bool((owner == -1).all())
