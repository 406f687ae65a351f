"""Moondream 3 against an oracle that was written without its code."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import photonlite
from photonlite.models.families import LoadOptions
from photonlite.models.loading import resolve
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.model import MoondreamModel
from photonlite.models.moondream.weights import load_model
from tests.models.moondream.checkpoints3 import Sizes, in_fp8, md3_layout, random_weights, write_folder
from tests.models.moondream.oracle3 import PREFIX, Oracle
from tests.plain import DenseCache
from tests.serving import make_image
from tests.tiny import CPU

SIZES = {
    "two-of-eight": Sizes(),
    "many-of-many": Sizes(dim=32, heads=2, layers=2, experts=20, chosen=8, inner=7, dense=0, norm=False),
    "all-of-six": Sizes(
        dim=40, heads=5, layers=4, experts=6, chosen=6, inner=9, dense=2, bins=33,
        switches={"text": {"tau_gelu": "tanh"}, "region": {"input": "normed", "coord_scale": "last_bin"}},
    ),
    "one-of-three": Sizes(dim=16, heads=4, layers=3, experts=3, chosen=1, inner=16, dense=1, ff=8),
}  # fmt: skip
TOLERANCE = 1e-4
STEPS = 20


def load(folder: Path, sizes: Sizes, state: dict[str, Tensor], dtype: torch.dtype = torch.float32) -> MoondreamModel:
    files = resolve(write_folder(folder, sizes, state))
    return load_model(files.weights, files.config, LoadOptions("cpu", dtype))


def distance(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


class Run:
    """One sequence on the model and on the oracle."""

    def __init__(self, model: MoondreamModel, oracle: Oracle) -> None:
        self.model, self.oracle = model, oracle
        self.cache = DenseCache(model.shape, model.shape.max_context, CPU, torch.float32)

    @torch.inference_mode()
    def run(self, mine: Tensor, theirs: Tensor, *, bidirectional: bool = False) -> tuple[Tensor, Tensor]:
        """Append embeddings ``[T, dim]``; check all that the last hidden state gives and return both."""
        positions = self.cache.reserve(len(mine), bidirectional=bidirectional)
        hidden = self.model.forward(mine.float()[None], positions, self.cache)[0]
        wanted = self.oracle.run(theirs, bidirectional=bidirectional)
        assert distance(hidden, wanted) < TOLERANCE
        last, true = hidden[-1], wanted[-1]
        assert distance(self.model.logits(last), self.oracle.logits(true)) < TOLERANCE
        assert distance(self.model.coordinate_logits(last), self.oracle.coordinate_logits(true)) < TOLERANCE
        sizes = torch.stack(self.oracle.size_logits(true))
        assert distance(self.model.size_logits(last), sizes) < TOLERANCE
        return last, true


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("pictured", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_prompt_and_20_steps_equal_the_oracle(tmp_path: Path, name: str, pictured: bool) -> None:
    sizes = SIZES[name]
    state = random_weights(sizes)
    oracle = Oracle(state, sizes)
    model = load(tmp_path, sizes, state)
    run = Run(model, oracle)
    ids = torch.randint(7, sizes.vocab, (9,), generator=torch.Generator().manual_seed(1)).tolist()
    words = torch.stack([oracle.word(token) for token in ids])
    if pictured:
        image = torch.randn(PREFIX - 1, sizes.dim, generator=torch.Generator().manual_seed(2))
        prefix = torch.cat((oracle.word(0)[None], image))
        run.run(prefix, prefix, bidirectional=True)
    else:
        words = torch.cat((oracle.word(0)[None], words))
    hidden, true = run.run(words, words)

    fed = []
    for step in range(STEPS):
        mine, theirs = feed(model, oracle, hidden, true, step)
        assert distance(mine, theirs) < TOLERANCE
        fed.append(theirs)
        hidden, true = run.run(mine[None], theirs[None])

    assert len(torch.stack(fed).unique(dim=0)) > STEPS // 2, "tokens that repeat would prove little"
    assert min(oracle.distances, default=1.0) > 1e-5, "a tie between experts would prove nothing"


@torch.inference_mode()
def feed(model: MoondreamModel, oracle: Oracle, hidden: Tensor, true: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """Choose the next input from the heads of each: sometimes a coordinate or a size, else one of the best words.

    The best word alone would soon repeat itself.
    """
    if step % 5 == 3:
        bins = oracle.sizes.bins
        index = int(oracle.coordinate_logits(true).argmax())
        wide = oracle.sizes.switches.get("region", {}).get("coord_scale") == "last_bin"
        mine = model.coordinate_of(model.coordinate_logits(hidden).argmax()[None], bins)
        return model.embed_coordinates(mine)[0], oracle.coordinate(index / (bins - 1 if wide else bins))
    if step % 5 == 4:
        bins = oracle.sizes.size_bins
        values = [2 ** (int(one.argmax()) * 10 / (bins - 1) - 10) for one in oracle.size_logits(true)]
        mine = model.size_of(model.size_logits(hidden).argmax(dim=-1), bins)
        return model.embed_sizes(mine[None])[0], oracle.size(*values)
    ranks = (logits.argsort(descending=True) for logits in (model.logits(hidden), oracle.logits(true)))
    mine, theirs = (order[step] for order in ranks)
    return model.embed(mine), oracle.word(int(theirs))


@pytest.mark.parametrize("options", [{}, {"fused_tau": True}, {"compiled": True}])
def test_both_layouts_hold_the_same_model(tmp_path: Path, options: dict[str, bool]) -> None:
    for sizes in SIZES.values():
        state = random_weights(sizes)
        one = load(tmp_path / "hub", sizes, state).state_dict()
        other = load(tmp_path / "md3", sizes, md3_layout(state, **options)).state_dict()

        assert one.keys() == other.keys() == {name.removeprefix("model.") for name in state}
        assert all(torch.equal(one[name], other[name]) for name in one)


@torch.inference_mode()
def hidden_states(model: MoondreamModel, length: int = 40) -> Tensor:
    cache = DenseCache(model.shape, length, CPU, model.text.wte.dtype)
    x = torch.randn(1, length, model.shape.dim, generator=torch.Generator().manual_seed(3)).to(model.text.wte.dtype)
    return model.forward(x, cache.reserve(length), cache)


@pytest.mark.parametrize("name", SIZES)
def test_experts_in_fp8_equal_their_dequantised_numbers(tmp_path: Path, name: str) -> None:
    sizes = SIZES[name]
    stored, wide = in_fp8(md3_layout(random_weights(sizes)))
    model = load(tmp_path / "fp8", sizes, stored)

    fc1 = model.text.blocks[-1].mlp.fc1
    assert fc1.weight.dtype == torch.float8_e4m3fn
    assert fc1.scale.dtype == torch.float32
    same = hidden_states(load(tmp_path / "wide", sizes, wide))
    assert distance(hidden_states(model), same.double()) < 1e-5
    exact = hidden_states(load(tmp_path / "exact", sizes, random_weights(sizes)))
    assert 1e-4 < distance(same, exact.double()) < 0.5, "rounding to 8 bits is seen, and is no more than that"


def test_quantised_experts_stay_so_in_a_model_of_another_type(tmp_path: Path) -> None:
    stored, _ = in_fp8(md3_layout(random_weights(Sizes())))
    model = load(tmp_path, Sizes(), stored, torch.bfloat16)
    narrow = hidden_states(model)
    layer = model.text.blocks[-1].mlp.fc1
    before = layer.weight.clone(), layer.scale.clone()

    wide = hidden_states(model.double())

    assert (layer.weight.dtype, layer.scale.dtype) == (torch.float8_e4m3fn, torch.float32)
    assert torch.equal(layer.weight.float(), before[0].float())
    assert torch.equal(layer.scale, before[1])
    assert distance(narrow, wide) < 0.1


def test_scales_of_a_quantised_cache_are_not_needed(tmp_path: Path) -> None:
    state = random_weights(Sizes())
    scales = {f"text_model.transformer.h.{layer}.kv_quantizer.k_scale": torch.ones(()) for layer in range(3)}

    assert load(tmp_path, Sizes(), md3_layout(state) | scales).state_dict().keys() == {
        name.removeprefix("model.") for name in state
    }


@pytest.mark.parametrize(("kind", "wide"), [("weights", False), ("float32", True)])
def test_the_logarithm_of_a_position_is_rounded_as_the_switch_says(tmp_path: Path, kind: str, wide: bool) -> None:
    sizes = Sizes(switches={"text": {"tau_positions": kind}})
    tau = load(tmp_path, sizes, random_weights(sizes), torch.bfloat16).text.blocks[0].attn.tau
    assert tau is not None
    alpha = tau.alpha.double()

    found = tau.of_positions(torch.arange(1000))

    exact = 0.5 + torch.sigmoid((torch.arange(1000)[:, None] + 1).double().log() * alpha)
    assert torch.equal(found[0], torch.ones_like(found[0]))
    assert torch.allclose(found.double(), exact, rtol=0.02)
    assert torch.equal(found, exact.bfloat16()) is wide


@pytest.mark.parametrize("layout", ["fp8", *(pytest.param(wide, marks=pytest.mark.long) for wide in ("hub", "md3"))])
def test_a_folder_answers_every_skill_alike_at_both_depths(tmp_path: Path, layout: str) -> None:
    state = random_weights(Sizes())
    state["model.text.lm_head.bias"][0] -= 10  # nothing ends by chance
    renamed = state if layout == "hub" else md3_layout(state)
    folder = write_folder(tmp_path, Sizes(), in_fp8(renamed)[0] if layout == "fp8" else renamed)

    answers = []
    for depth in (1, 2):
        with photonlite.load(folder, device="cpu", engine={"depth": depth}) as model:
            assert model.skills == ("caption", "query", "detect", "point", "segment")
            assert model.weights == ("fp8" if layout == "fp8" else "auto")
            image = make_image(0)
            answers.append(
                [
                    dict(model.detect(image, "mug", settings={"max_objects": 3})),
                    dict(model.point(image, "mug", settings={"max_objects": 3})),
                    dict(model.query(image, "why?", settings={"max_tokens": 8, "temperature": 0})),
                    dict(model.query(image, "why?", reasoning=True, settings={"max_tokens": 8, "temperature": 0})),
                    dict(model.caption(image, length="short", settings={"max_tokens": 8, "temperature": 0})),
                ]
            )

    assert answers[0] == answers[1]
    found = answers[0]
    assert len(found[0]["objects"]) == len(found[1]["points"]) == 3
    assert found[2]["answer"]
    assert found[3]["reasoning"]["text"]
    assert found[4]["caption"]


@pytest.mark.parametrize("kind", ["erf", "tanh"])
def test_temperatures_read_the_gelu_that_the_switch_says(tmp_path: Path, kind: str) -> None:
    sizes = Sizes(switches={"text": {"tau_gelu": kind}})
    tau = load(tmp_path, sizes, random_weights(sizes), torch.float64).text.blocks[0].attn.tau
    assert tau is not None
    q, k, v = torch.randn(3, 1, 2, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    of_q, of_v = tau(q, k, v, torch.zeros(2))

    x = torch.cat((q, k, v), dim=2).flatten(2)
    cubic = torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))
    feature = x / 2 * (1 + (torch.erf(x / 2**0.5) if kind == "erf" else cubic))
    for found, given, weight in ((of_q, q, tau.wq), (of_v, v, tau.wv)):
        wanted = given * (1 + torch.tanh(feature @ weight.T))[..., None]
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_a_coordinate_belongs_to_the_bin_that_the_switch_says() -> None:
    bins = torch.tensor([0, 20, 39])
    for kind, wanted in (("bins", [0, 0.5, 0.975]), ("last_bin", [0, 20 / 39, 1])):
        model = meta_model(region={"coord_scale": kind})
        assert model.coordinate_of(bins, 40).tolist() == pytest.approx(wanted)


def test_heads_that_read_normed_states_have_a_second_norm_and_are_no_data() -> None:
    assert meta_model(region={"input": "normed"}).heads is None
    assert meta_model().heads is not None


def meta_model(**switches: dict[str, Any]) -> MoondreamModel:
    with torch.device("meta"):
        return MoondreamModel(MoondreamConfig.from_dict(Sizes(switches=switches).config()))
