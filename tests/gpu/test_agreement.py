import copy

import pytest
import torch

from bench import agreement
from bench.bubble.subjects import random_model
from bench.shapes import TINY
from photonlite.models.moondream.config import MoondreamConfig


def test_a_model_in_float64_agrees_with_itself_and_a_damaged_one_does_not() -> None:
    torch.manual_seed(0)
    model = random_model(MoondreamConfig.from_dict(TINY), torch.device("cpu"), torch.float64)
    truth = copy.deepcopy(model)

    with torch.inference_mode():
        plain, fused = agreement.compare(model, truth, rows=2, words=3, tokens=20)
        model.packed_blocks[0].w_in.mul_(1.5)
        damaged, _ = agreement.compare(model, truth, rows=2, words=3, tokens=20)

    assert max(plain.errors + fused.errors) < 1e-12
    assert fused.agreed == fused.tokens == 2 * 23
    assert not fused.margins
    assert min(damaged.errors) > 1e-3


def test_margins_are_counted_where_tokens_differ_in_spreads_of_the_true_logits() -> None:
    tally = agreement.Tally()
    truth = torch.tensor([[4.0, 2.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)

    tally.add(torch.tensor([[1.0, 3.0, 0.0], [1.0, 0.0, 0.0]]), truth, torch.tensor([0, 0]))

    assert (tally.agreed, tally.tokens) == (1, 2)
    assert tally.margins == pytest.approx([1.0])  # 4 - 2, of a spread of 2


def test_the_command_prints_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    agreement.main(["--rows", "2", "--words", "2", "--tokens", "3"])

    assert "greedy tokens alike" in capsys.readouterr().out


def test_a_card_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        agreement.main(["--device", f"cuda:{torch.cuda.device_count()}"])

    assert ended.value.code == 2
    assert "is not here" in capsys.readouterr().err
