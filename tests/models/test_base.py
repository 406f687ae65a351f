from typing import Any, get_type_hints

import pytest
import torch

from photonlite.models.base import Model, ModelView, UnfusedModel
from photonlite.models.layers import MaskedAttention
from photonlite.models.moondream.fused.prefill import FusedPrefill
from tests.tiny import tiny_config, tiny_model

MEMBERS = sorted(name for name in vars(Model) if not name.startswith("_"))
PROPERTIES = [name for name in MEMBERS if isinstance(vars(Model)[name], property)]
METHODS = [name for name in MEMBERS if name not in PROPERTIES]
FUSED = {"heads": None, "input_weights": None, "prompt_decoder": None, "step_decoder": None}


class Spy:
    """Returns the name and the arguments of every member that is used."""

    def __init__(self) -> None:
        for name in PROPERTIES:
            setattr(self, name, (name,))

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **options: (name, arguments, options)


def call(view: object, name: str) -> tuple[Any, Any]:
    """Call a method with distinct arguments; return the result and the expected one."""
    hints = [hint for hint in get_type_hints(vars(Model)[name]) if hint != "return"]
    options = {hint: f"{name} {hint}" for hint in hints if hint == "fp8"}
    arguments = tuple(f"{name} {hint}" for hint in hints if hint not in options)
    return getattr(view, name)(*arguments, **options), (name, arguments, options)


def test_a_view_forwards_every_member() -> None:
    view = ModelView(Spy())  # type: ignore[arg-type]
    for name in PROPERTIES:
        assert getattr(view, name) == (view if name == "numbers" else (name,))
    for name in METHODS:
        found, wanted = call(view, name)
        assert found == wanted


def test_a_view_of_a_model_without_numbers_has_none() -> None:
    spy = Spy()
    spy.numbers = None
    assert ModelView(spy).numbers is None  # type: ignore[arg-type]


def test_an_unfused_model_forwards_everything_but_fused_parts() -> None:
    view = UnfusedModel(Spy())  # type: ignore[arg-type]
    for name in PROPERTIES:
        assert getattr(view, name) == (None if name in FUSED else view if name == "numbers" else (name,))
    for name in (name for name in METHODS if name != "plain_parts"):
        found, wanted = call(view, name)
        assert found == (("vision",) if name == "crop_encoder" else None if name in FUSED else wanted)
    reason = "the engine setting 'fused' is off"
    assert view.plain_parts() == {"image encoder": reason, "prompts": reason, "decode steps": reason}


def test_an_unfused_model_computes_the_same_as_the_model() -> None:
    model = tiny_model(tiny_config())
    view = UnfusedModel(model)
    generator = torch.Generator().manual_seed(0)
    x, positions = torch.randn(1, 4, 24, generator=generator), torch.arange(4)
    mask = MaskedAttention(torch.ones(4, 4).tril().bool())

    assert torch.equal(view.forward(x, positions, mask), model(x, positions, mask))
    assert torch.equal(view.size_logits(x), model.size_logits(x))
    assert view.crop_encoder() is view.vision is model.vision
    # The model itself returns fused parts for FP8.
    assert isinstance(model.prompt_decoder(fp8=True), FusedPrefill)
    assert view.prompt_decoder(fp8=True) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_card_an_unfused_model_has_no_fused_parts() -> None:
    model = tiny_model(tiny_config()).to("cuda", torch.bfloat16)
    view = UnfusedModel(model)
    assert model.step_decoder() is not None
    assert (view.step_decoder(), view.prompt_decoder(), view.heads, view.input_weights) == (None,) * 4
    assert view.crop_encoder() is model.vision
