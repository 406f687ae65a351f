import pytest
import torch

from bench.nano.adapter.data import IGNORED, SceneMaker, _pack, new_objects, octaves
from bench.nano.scenes.objects import load_objects
from bench.nano.scenes.sprites import FONT
from photonlite.models.checkpoint import load_checkpoint


def test_the_new_objects_are_none_that_the_checkpoint_knows() -> None:
    known = {word for item in load_objects() for word in (*item.names, *item.plurals)}
    new = new_objects()
    assert len({item.name for item in new}) == 20
    assert not known & {word for item in new for word in (*item.names, *item.plurals)}


def test_questions_see_the_prefix_and_themselves() -> None:
    rows = [([7, 8], [(0.5, 0.25, 0.1, 0.2)]), ([9], [])]
    packed = _pack([(torch.zeros(4, 4, 3, dtype=torch.uint8).numpy(), rows)], prefix=3)
    assert packed.ids.tolist() == [[7, 8, 0, 0, 0, 9]]
    assert packed.positions.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7, 3]]
    mask = packed.mask[0, 0]
    assert mask[3:, :3].all()
    assert not mask[8, 3:8].any()
    assert mask[:3, :3].all()
    assert not mask[:3, 3:].any()
    assert not mask[3, 4]
    assert packed.goes_on.tolist() == [[IGNORED, 1, IGNORED, IGNORED, 0, 0]]
    assert packed.coordinate[0].tolist() == pytest.approx([IGNORED, 0.5, 0.25, IGNORED, IGNORED, IGNORED])
    assert packed.size[0, 3].tolist() == pytest.approx([0.1, 0.2])
    assert packed.values[0, 2:5].tolist() == [
        pytest.approx([0.5, IGNORED]),
        pytest.approx([0.25, IGNORED]),
        pytest.approx([0.1, 0.2]),
    ]


def test_sizes_are_on_a_logarithmic_scale() -> None:
    assert octaves(torch.tensor([1.0, 0.5, 2.0**-10, 0.0]), 10).tolist() == pytest.approx([1, 0.9, 0, 0])


@pytest.mark.long
@pytest.mark.skipif(not FONT.exists(), reason="the font is missing")
def test_a_step_of_training_lowers_the_loss_and_is_saved_as_a_lora(tmp_path) -> None:
    from bench.nano.adapter.train import add_adapter, loss_of, save_adapter
    from photonlite.models.adapters.files import find_adapter, read_adapter

    loaded = load_checkpoint(None, device=torch.device("cpu"), dtype=torch.float32)
    network = loaded.model
    terms = add_adapter(network)
    assert sum(parameter.requires_grad for parameter in network.parameters()) == 2 * len(terms)
    maker = SceneMaker(loaded.prompts, network.crop_spec, network.config.prefix_length)
    packed = maker.batch([0])
    optimizer = torch.optim.AdamW([one for one in network.parameters() if one.requires_grad], lr=1e-3)
    torch.manual_seed(0)
    losses = []
    for _ in range(4):
        loss = loss_of(network, packed)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    save_adapter(terms, tmp_path)
    clean = load_checkpoint(None, device=torch.device("cpu"), dtype=torch.float32)
    weights = read_adapter(find_adapter(tmp_path), clean.model, clean.family, dtype=torch.float32, rank=16)
    assert len(weights.terms) == len(terms)
