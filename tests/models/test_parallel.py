"""Shares of a model: what each rank holds, and that they compute together what the whole one does."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import photonlite
from photonlite.device.collectives import RankGroup
from photonlite.errors import SettingsError
from photonlite.models.base import Model, NextPositions, StepDecoder
from photonlite.models.checkpoint import load_files
from photonlite.models.layers import MaskedAttention
from photonlite.models.loading import ModelFiles, resolve
from photonlite.models.moondream import checkpoint
from photonlite.models.moondream.fused.decode import RankDecode as MoondreamRankDecode
from photonlite.models.parallel import check_ranks, share_of
from photonlite.models.qwen.fused.decode import RankDecode as QwenRankDecode
from photonlite.models.qwen.fused.layers import block_weights, rotary_rows
from photonlite.models.qwen.model import QwenModel
from photonlite.runner.buffers import PagedCache
from photonlite.runner.ranks.model import RankModel
from tests.models.checkpoints import make_folder
from tests.models.qwen.tiny import CASES, reference_model, save
from tests.ranks import divisible_config, on_ranks, saved
from tests.tiny import CPU, GOLDEN

LENGTH = 9


def results(model: Model) -> tuple[Tensor, Tensor]:
    """Run a prompt; return raw hidden states and logits."""
    ids = torch.randint(0, model.shape.vocab_size, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(LENGTH)
    if model.shape.axes:
        positions = positions.expand(model.shape.axes, 1, LENGTH)
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    hidden = model.forward(model.embed(ids), positions, MaskedAttention(mask))
    return hidden, model.logits(hidden)


def check(files: ModelFiles, count: int) -> None:
    def share(ranks: RankGroup) -> tuple[int, Tensor, Tensor]:
        loaded = load_files(files, device=CPU, dtype=torch.float64, ranks=ranks)
        held = sum(value.numel() for name, value in loaded.model.text.named_parameters())  # type: ignore[attr-defined]
        return held, *results(RankModel(loaded.model, ranks))

    with torch.inference_mode():
        whole = load_files(files, device=CPU, dtype=torch.float64).model
        hidden, logits = results(whole)
    held = sum(value.numel() for value in whole.text.parameters())  # type: ignore[attr-defined]
    for numbers, ours, of_words in on_ranks(count, share):
        assert numbers < held
        torch.testing.assert_close(ours, hidden, rtol=0, atol=1e-12)
        torch.testing.assert_close(of_words, logits, rtol=0, atol=1e-12)


def fused_steps(model: RankModel, ids: Tensor) -> Tensor:
    """Run prompts ``[B, T]`` position by position, as decode steps do; return raw hidden states."""
    shape, own = model.shape, model._model
    if isinstance(own, QwenModel):
        rotary = rotary_rows(own.config.text, CPU)
        decoder: StepDecoder = QwenRankDecode(block_weights(own.text), rotary, model.ranks)
    else:
        decoder = MoondreamRankDecode(own.config.text, own.packed_blocks, model.ranks)
    table = torch.arange(ids.numel(), dtype=torch.int32).view(ids.shape)
    cache = PagedCache(shape, ids.numel(), 1, CPU, torch.float64, [])
    states = []
    for position in range(ids.shape[1]):
        positions = torch.full((len(ids),), position, dtype=torch.int32)
        rows = NextPositions(positions, table[:, position].contiguous(), table)
        states.append(decoder(model.embed(ids[:, position]).clone(), rows, cache))
    return torch.stack(states, dim=1)


def check_steps(files: ModelFiles, count: int) -> None:
    ids = torch.randint(0, 8, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()

    def share(ranks: RankGroup) -> Tensor:
        return fused_steps(RankModel(load_files(files, device=CPU, dtype=torch.float64, ranks=ranks).model, ranks), ids)

    with torch.inference_mode():
        whole = load_files(files, device=CPU, dtype=torch.float64).model
        positions = torch.arange(LENGTH)
        if whole.shape.axes:
            positions = positions.expand(whole.shape.axes, 1, LENGTH)
        wanted = whole.forward(whole.embed(ids), positions, MaskedAttention(mask))
    for states in on_ranks(count, share):
        torch.testing.assert_close(states, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_fused_steps_of_ranks_of_moondream_add_up(tmp_path: Path, count: int, layers: int) -> None:
    check_steps(saved(divisible_config(n_heads=8, n_kv_heads=4, ff_dim=24, n_layers=layers), tmp_path), count)


@pytest.mark.parametrize(("case", "count"), [("2.5", 2), ("3", 2), ("3-plain", 4)])
def test_fused_steps_of_ranks_of_qwen_add_up(tmp_path: Path, case: str, count: int) -> None:
    check_steps(resolve(save(reference_model(case), tmp_path, case)), count)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("text", [{}, {"n_heads": 8, "n_kv_heads": 4, "ff_dim": 24}], ids=["heads", "groups"])
def test_ranks_of_moondream_compute_what_the_whole_model_does(tmp_path: Path, count: int, text: dict[str, int]) -> None:
    check(saved(divisible_config(**text), tmp_path), count)


@pytest.mark.parametrize(("case", "count"), [("2.5", 2), ("3", 2), ("3-plain", 4), ("3-both", 4)])
def test_ranks_of_qwen_compute_what_the_whole_model_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, count: int
) -> None:
    tied = CASES["3-plain"]["text"] | {"tie_word_embeddings": True}
    monkeypatch.setitem(CASES, "3-both", CASES["3-plain"] | {"text": tied})

    check(resolve(save(reference_model(case), tmp_path, case)), count)


def test_the_image_encoder_is_on_rank_0_alone(tmp_path: Path) -> None:
    files = saved(divisible_config(), tmp_path)

    def names(ranks: RankGroup) -> set[str]:
        model = load_files(files, device=CPU, dtype=torch.float32, ranks=ranks).model
        return {name.partition(".")[0] for name, _ in model.named_parameters()}  # type: ignore[attr-defined]

    assert on_ranks(2, names) == [{"vision", "text", "region"}, {"text", "region"}]


def test_a_share_is_cut_from_the_dimension_that_is_smaller() -> None:
    whole = torch.arange(24).view(4, 6)

    assert share_of(whole, (2, 6), 1).tolist() == whole[2:].tolist()
    assert share_of(whole, (4, 2), 2).tolist() == whole[:, 4:].tolist()
    assert share_of(whole, (4, 6), 1) is whole


@pytest.mark.parametrize(
    ("count", "changes", "message"),
    [
        (3, {}, r"'tensor_parallel' is 3, which does not divide text.n_heads, 4: this checkpoint takes 1, 2, 4$"),
        (4, {"n_kv_heads": 2}, r"'tensor_parallel' is 4, which does not divide text.n_kv_heads, 2: .* takes 1, 2$"),
        (2, {"tau": True}, r"'tensor_parallel' is 2, but this checkpoint cannot be divided: leave it at 1"),
    ],
)
def test_ranks_that_do_not_divide_a_decoder_are_refused(count: int, changes: dict[str, int], message: str) -> None:
    sizes = checkpoint.rank_sizes(divisible_config(**changes))

    with pytest.raises(SettingsError, match=message):
        check_ranks(count, sizes, ["some", "others"])


def test_load_refuses_ranks_with_the_numbers_before_any_process_starts(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"'tensor_parallel' is 4, which does not divide text.n_heads, 2: .* 1, 2$"):
        photonlite.load(GOLDEN, device="cpu", engine={"tensor_parallel": 4})
    folder = make_folder(tmp_path / "3")
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"model_type": "moondream3"}))
    titles = "Moondream 2 and the shipped checkpoint, Qwen3-VL and Qwen2.5-VL"
    with pytest.raises(SettingsError, match=rf"cannot be divided: leave it at 1 \({titles} can be\)"):
        photonlite.load(folder, device="cpu", engine={"tensor_parallel": 2})
