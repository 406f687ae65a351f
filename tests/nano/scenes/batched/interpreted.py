"""Runs the generator's kernels on the CPU by Triton's interpreter; see `tests/kernels/interpreter.py`."""

import random

import torch

from bench.nano.scenes.batched import bank, bank_kernel, blend, blend_kernel
from bench.nano.scenes.batched.compose import Composer
from bench.nano.scenes.batched.layouts import Difficulty
from tests.nano.small import squares

CPU = torch.device("cpu")
SIZES = [(24, 80), (40, 24)]  # some tiles are whole, some not


def sprites() -> torch.Tensor:
    """Squares, and one sprite of noise with soft edges."""
    made = torch.cat((squares((255, 0, 0), (0, 90, 255)), torch.zeros(1, 128, 128, 4, dtype=torch.uint8)))
    made[2, 20:100, 10:120] = torch.randint(0, 256, (80, 110, 4)).to(torch.uint8)
    return made


def main() -> None:
    torch.manual_seed(0)
    random.seed(0)  # kinds of backgrounds
    for size in SIZES:
        kit = Composer(sprites(), size, 3, CPU, entries=3, most=12)
        texels = kit.texels.half()
        layout = kit._layout(3, Difficulty().tensor(CPU))
        objects = kit._objects(layout)
        objects = objects._replace(darkness=torch.tensor([[0.0], [0.4], [0.8]]))
        canvas = torch.rand(3, 3, *size).half()
        expected, owner = blend.reference_blend(canvas.float(), texels, objects)
        reach = blend.reach(objects, canvas.shape, 128)
        owners, tallies = blend_kernel.triton_blend(canvas, texels, objects, reach)
        torch.testing.assert_close(canvas.float(), expected, atol=2e-3, rtol=0)
        assert (owners != owner).float().mean() < 1e-3
        assert (owner >= 0).any()
        seen, wanted = blend.VisibleExtent(*tallies), blend.measure(owners, objects.label.shape[1])
        for name, one, other in zip(blend.VisibleExtent._fields, seen, wanted, strict=True):
            assert torch.equal(one, other), (size, name)
        entry = torch.randint(3, (4, 2))
        mask = kit.bank._masks(4)
        mask[:, -1] = torch.tensor([0.0, 1.0, 1.0, 0.0])
        arguments = kit.bank.texels, entry, kit.bank._places(4, size), kit.bank._colours(entry), mask, size
        taken, plain = bank_kernel.triton_take(*arguments), bank.take(*arguments)
        torch.testing.assert_close(taken.float(), plain, atol=2e-3, rtol=0)
        assert plain.std() > 0.01
    print("interpreted kernels agree")
