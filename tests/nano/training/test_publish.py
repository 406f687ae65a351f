import json
from shutil import copytree

import pytest
import torch
from safetensors.torch import load_file, save_file

from bench.nano.questions.layout import COORD
from bench.nano.training import publish


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    bias = torch.arange(8, dtype=torch.float16)
    save_file({"model.text.lm_head.bias": bias, "other": torch.ones(3)}, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "photonlite_nano"}')
    return folder


def test_weights_config_and_tokenizer_are_copied(run, tmp_path):
    size = publish.publish(run, tmp_path / "out")

    written = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(written["model.text.lm_head.bias"], torch.arange(8, dtype=torch.float16))
    assert torch.equal(written["other"], torch.ones(3))
    assert size == (tmp_path / "out" / "model.safetensors").stat().st_size
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {"model_type": "photonlite_nano"}
    assert (tmp_path / "out" / "tokenizer.json").exists()


def test_weights_may_keep_a_share_of_the_earlier_ones_by_their_names(run, tmp_path, monkeypatch):
    publish.publish(run, tmp_path / "out")
    later = {"model.text.lm_head.bias": torch.full((8,), 4.0).half(), "other": torch.zeros(3)}
    save_file(later, run / "model.safetensors")
    before = load_file(tmp_path / "out" / "model.safetensors")
    save_file(before | {"no longer there": torch.ones(1)}, tmp_path / "out" / "model.safetensors")

    for kept, others in ((["lm_head=0.5"], 0.0), (["lm_head=0.5", "=0.25"], 0.25)):
        copytree(tmp_path / "out", tmp_path / str(others))
        monkeypatch.setattr("sys.argv", ["publish", str(run), "--folder", str(tmp_path / str(others)), "--kept", *kept])
        publish.main()

        written = load_file(tmp_path / str(others) / "model.safetensors")
        assert torch.equal(written["model.text.lm_head.bias"], 2 + torch.arange(8, dtype=torch.float16) / 2)
        assert torch.equal(written["other"], torch.full((3,), others))


def test_doubt_lowers_the_logit_of_a_box_and_no_other_and_does_not_add_up(run, tmp_path, monkeypatch):
    doubted = torch.arange(8, dtype=torch.float16)
    doubted[COORD] -= 2
    for kept in ([], ["--kept", "=0.5"]):
        command = ["publish", str(run), "--folder", str(tmp_path / "out"), "--doubt", "2", *kept]
        monkeypatch.setattr("sys.argv", command)
        publish.main()

        written = load_file(tmp_path / "out" / "model.safetensors")
        assert written["model.text.lm_head.bias"].dtype == torch.float16
        assert torch.equal(written["model.text.lm_head.bias"], doubted)
        assert torch.equal(written["other"], torch.ones(3))


@pytest.mark.parametrize("doubt", [-1.0, float("nan"), float("inf")])
def test_a_doubt_that_is_none_is_refused(doubt, run, tmp_path):
    with pytest.raises(ValueError, match="it must be a number of logits"):
        publish.publish(run, tmp_path / "out", doubt=doubt)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("names", "share", "why"),
    [
        ("", 1.5, "must be at least 0 and below 1"),
        ("head", 0.1, "has no weights of which"),
        ("haed", 0.1, "no weight has 'haed' in its name"),
    ],
)
def test_a_share_that_cannot_be_kept_is_refused(names, share, why, run, tmp_path):
    with pytest.raises(ValueError, match=why):
        publish.publish(run, tmp_path / "out", [(names, share)])


@pytest.mark.parametrize("text", ["0.5", "lm_head", "lm_head=half"])
def test_a_share_without_names_or_number_is_refused(text, run, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["publish", str(run), "--kept", text])
    with pytest.raises(SystemExit):
        publish.main()
    assert f"'{text}' is no NAMES=SHARE, such as vision.=0.5" in capsys.readouterr().err


def test_weights_over_the_limit_are_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr(publish, "LIMIT", 10)

    with pytest.raises(ValueError, match="limit of 10"):
        publish.publish(run, tmp_path / "out")


ROW = {"name": "points", "figure": 0.98765, "limit": 0.9, "at_most": False, "met": True, "interval": [0.9, 0.99]}


def test_the_card_shows_figures_and_aims(tmp_path):
    card, figures = tmp_path / "README.md", tmp_path / "figures.json"
    card.write_text("Before\n<!-- figures -->\nold\n<!-- end of figures -->\nafter\n")
    missed = {"name": "false", "figure": 0.5, "limit": 0.03, "at_most": True, "met": False, "interval": None}
    number = missed | {"name": "boxes", "figure": 916, "limit": 0}
    figures.write_text(json.dumps({"headline": [ROW, missed, number]}))
    for _ in range(2):  # it can be written anew
        publish.update_card(card, [figures])
        assert card.read_text().splitlines() == [
            "Before", "<!-- figures -->", "| | figure | 95 % | aim |", "|---|---:|---:|---:|",
            "| points | 0.988 | 0.900 to 0.990 | 0.9 |", "| false | 0.500 |  | at most 0.03, missed |",
            "| boxes | 916 |  | at most 0, missed |",
            "<!-- end of figures -->", "after",
        ]  # fmt: skip


def test_the_card_shows_the_drawing_of_reliability(tmp_path):
    (tmp_path / "nano").mkdir()
    (tmp_path / "run").mkdir()
    card, figures = tmp_path / "nano" / "README.md", tmp_path / "run" / "figures.json"
    card.write_text("<!-- figures --><!-- end of figures -->")
    figures.write_text(json.dumps({"headline": [ROW]}))
    (tmp_path / "run" / "reliability.png").write_bytes(b"image")
    publish.update_card(card, [figures])
    assert "](../reliability.png)" in card.read_text()
    assert (tmp_path / "reliability.png").read_bytes() == b"image"


def test_a_card_without_marks_is_refused(tmp_path):
    (tmp_path / "README.md").write_text("<!-- figures -->")
    with pytest.raises(ValueError, match="add them"):
        publish.update_card(tmp_path / "README.md", [])


def test_the_shipped_card_has_the_marks():
    text = (publish.ASSETS / "README.md").read_text(encoding="utf-8")
    assert text.index("<!-- figures -->") < text.index("<!-- end of figures -->")
