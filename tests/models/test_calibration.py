import pytest
import torch
from torch import nn

from photonlite.models import calibration
from photonlite.models.calibration import input_moments
from photonlite.models.families import LoadOptions
from photonlite.models.precisions import Precisions
from photonlite.models.quantised import QuantisedLinear, WeightStore, layers_of


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.text = nn.ModuleDict({"first": nn.Linear(32, 48), "second": nn.Linear(48, 24, bias=False)})
        self.vision = nn.ModuleDict({"first": nn.Linear(32, 8)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.vision["first"](x)
        return self.text["second"](self.text["first"](x))


@torch.no_grad()
def test_moments_are_sums_over_all_that_went_into_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_WHOLE", 32)
    model = Two()
    first, second = torch.randn(2, 3, 32), torch.randn(5, 32)
    with input_moments(model, Precisions("int4", "int8")) as found:
        model(first)
        model(second)
    model(second)  # behind it nothing is summed

    rows = torch.cat((first.flatten(0, 1), second))
    assert found.keys() == {"text.first", "text.second"}
    torch.testing.assert_close(found["text.first"], rows.t() @ rows)
    inner = model.text["first"](rows).view(len(rows), 3, 16)
    torch.testing.assert_close(found["text.second"], torch.einsum("tgi,tgj->gij", inner, inner))


@torch.no_grad()
@pytest.mark.parametrize("known", [True, False])
def test_a_store_rounds_a_layer_in_parts_for_its_inputs(known: bool) -> None:
    model, x = Two(), torch.randn(64, 8) @ torch.randn(8, 32)
    with input_moments(model, Precisions("int4")) as found:
        model(x)
    with torch.device("meta"):
        outline = Two()
    moments = found if known else {}
    layers = layers_of(outline, Precisions("int4"))
    store = WeightStore(outline, layers, LoadOptions("cpu", torch.float32, precisions=Precisions(moments=moments)))
    for name, value in model.state_dict().items():
        store.put(name, value[:20], slice(0, 20))
        store.put(name, value[20:], slice(20, len(value)))
    store.fill()

    layer = outline.text["first"]
    assert isinstance(layer, QuantisedLinear)
    wanted = model.text["first"](x)
    error = float((layer(x) - wanted).norm() / wanted.norm())
    assert error < 0.05 if known else error > 0.05
