import pytest
import torch

from bench.shapes import SHAPES
from bench.steps import __main__ as steps
from bench.steps import tune
from bench.steps.subjects import Rows, make_subject
from photonlite.kernels import experts, small_batch_gemm, tilings
from photonlite.kernels.reference.quantised import empty, join_columns
from photonlite.models.qwen.config import QwenConfig
from photonlite.models.qwen.text import TextDecoder

# In millions, by the makers' counts: decoder and embeddings, without the vision tower.
PUBLISHED = {
    "qwen3-vl-2b": 1720, "qwen3-vl-4b": 4022, "qwen3-vl-8b": 8191, "qwen2.5-vl-3b": 3086, "qwen2.5-vl-7b": 7616
}  # fmt: skip
RUN = ["--device", "cpu", "--tiny", "--rounds", "1", "--context", "50"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_have_as_many_parameters_as_the_published_models(name: str) -> None:
    config = QwenConfig.from_dict(SHAPES[name].raw)
    with torch.device("meta"):
        text = TextDecoder(config.text, config.version)
    assert sum(one.numel() for one in text.parameters()) / 1e6 == pytest.approx(PUBLISHED[name], rel=0.01)


def test_steps_are_timed_both_ways_beside_their_floor(tmp_path, capsys) -> None:
    page = tmp_path / "steps.md"

    code = steps.main([*RUN, "--shape", "qwen3-vl-2b", "--streams", "1", "2", "--parts", "--output", str(page)])

    assert code == 0
    rows = [line.strip("| ").split("|") for line in page.read_text().splitlines() if "stream" in line]
    assert [row[0].strip() for row in rows[:2]] == ["qwen3-vl-2b, 1 stream", "qwen3-vl-2b, 2 streams"]
    assert all(float(row[column]) > 0 for row in rows[:2] for column in (1, 5, 7))
    assert len(rows) == 2 + 2 * 6, "as many rows of kernels as a block has, and the head"
    assert "python -m" not in capsys.readouterr().err


def test_a_step_whose_rows_have_adapters_is_timed_too(tmp_path) -> None:
    page = tmp_path / "steps.md"

    code = steps.main([*RUN, "--shape", "moondream2", "--streams", "3", "--adapters", "2", "--output", str(page)])

    assert code == 0
    (row,) = [line.strip("|").split("|") for line in page.read_text().splitlines() if "2 adapters" in line]
    assert float(row[1]) > 0


@pytest.mark.parametrize("name", ["moondream3", "moondream3-fp8"])
def test_a_decoder_with_experts_shows_how_many_its_rows_meet(name: str, tmp_path) -> None:
    page = tmp_path / "steps.md"

    code = steps.main([*RUN, "--shape", name, "--streams", "1", "3", "--parts", "--output", str(page)])

    assert code == 0
    sections = dict(part.split("\n\n", 1) for part in page.read_text().split("\n## ")[1:])
    met = [line.strip("|").split("|") for line in sections["Different experts of a step"].splitlines()[2:4]]
    assert float(met[0][1]) == 2.0
    assert 2.0 < float(met[1][1]) <= 6.0
    rows = [line.strip("|").split("|") for line in sections["Steps"].splitlines()[2:4]]
    assert all(float(row[5]) > 0 and float(row[7]) > 0 for row in rows)
    kernels = [line for line in sections["Kernels, each alone behind itself"].splitlines() if "stream" in line]
    assert len(kernels) == 2 * 10 + 5
    assert sum("plain operations" in line for line in kernels) == 2 * 2 + 2


def test_a_row_that_fails_leaves_a_gap_and_the_others_are_measured(tmp_path, monkeypatch) -> None:
    page, usual = tmp_path / "steps.md", Rows.fused

    def failing(self: Rows) -> None:
        if len(self.rows) == 1:
            raise RuntimeError("no kernel image")
        usual(self)

    monkeypatch.setattr(Rows, "fused", failing)
    code = steps.main([*RUN, "--shape", "qwen2.5-vl-3b", "--streams", "1", "2", "--output", str(page)])

    assert code == 1
    text = page.read_text()
    assert "qwen2.5-vl-3b, 1 stream, fused: RuntimeError: no kernel image" in text
    rows = {
        line.split("|")[1].strip(): line.split("|")[2].strip()
        for line in text.splitlines()
        if "stream" in line and "|" in line
    }
    assert rows["qwen2.5-vl-3b, 1 stream"] == "-"
    assert float(rows["qwen2.5-vl-3b, 2 streams"]) > 0


def test_no_row_begins_when_time_is_over(capsys) -> None:
    assert steps.main([*RUN, "--shape", "qwen3-vl-2b", "--seconds", "0"]) == 1
    assert "not begun: 0 s are over" in capsys.readouterr().out


def test_other_ways_to_divide_a_kernel_are_tried_one_by_one(monkeypatch, capsys) -> None:
    monkeypatch.setattr(tune, "SEVERAL", tune.SEVERAL[:2])

    assert tune.main([*RUN, "--streams", "2", "--only", "down"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("  down:") for line in lines) == 2


@pytest.mark.parametrize("weights", ["fp8", "int4"])
def test_products_with_quantised_weights_are_divided_in_other_ways(weights: str, monkeypatch, capsys) -> None:
    few = tune.SINGLE_8[:2]
    for name in ("SINGLE_8", "SINGLE_4", "SEVERAL_8", "SEVERAL_4", "ATTENTION_FEW"):
        monkeypatch.setattr(tune, name, few)

    given = ["--shape", "moondream2", "--weights", weights, "--streams", "1", "2"]
    assert tune.main([*RUN, *given]) == 0

    lines = capsys.readouterr().out.splitlines()
    for name in ("in", "out", "head", "attention"):
        assert sum(line.startswith(f"  {name}: ") and "ms with" in line for line in lines) == 4
    with tune.divided("in", 96, 64, few[0]):
        assert tilings.tiling_of(1, 96, 64, group=64) == few[0]
        assert tilings.tiling_of(1, 96, 65, group=65) != few[0]


def test_tilings_that_are_tried_go_with_the_weights_of_moondream_2() -> None:
    of_8, of_4 = [*tune.SINGLE_8, *tune.SEVERAL_8], [*tune.SINGLE_4, *tune.SEVERAL_4]
    for precision, tilings_of in (("fp8", of_8), ("int8", of_8), ("int4", of_4)):
        w_in = empty((14_336, 2048), precision, "meta")
        w_out = join_columns([empty((2048, columns), precision, "cpu") for columns in (2048, 8192)])
        for tiling in tilings_of:
            assert small_batch_gemm._goes_with(tiling, w_in, 0)
            assert small_batch_gemm._goes_with(tiling, w_out, 2048)


def test_grouped_products_are_divided_in_other_ways(monkeypatch) -> None:
    usual = experts.tiling_in(8, 64, 8, fp8=False)
    with tune.divided("experts in", 0, 0, tune.GROUPS[0]):
        assert experts.tiling_in(8, 64, 8, fp8=False) == tune.GROUPS[0] != usual
    subject = make_subject(SHAPES["moondream3"], torch.device("cpu"), torch.float32, tiny=True)
    assert set(tune.candidates(subject, 1)) == {"experts in", "experts out", "qkv", "proj", "attention"}
