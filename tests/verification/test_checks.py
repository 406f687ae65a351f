"""`verify`: agreement is found where there is some, and a wrong model or engine is told from a right one."""

import dataclasses
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import photonlite
from photonlite.cache import manager
from photonlite.cache.pages import page_key
from photonlite.engine import engine, layout
from photonlite.errors import ModelNotFoundError
from photonlite.grammar.decoding.grammars import TextGrammar, Vocabulary
from photonlite.models.base import UnfusedModel
from photonlite.models.qwen import text, vision
from photonlite.request import Request, SamplingSettings, Token
from photonlite.verification import Row, answers, checks
from photonlite.verification.answers import Answer
from photonlite.verification.checks import _gaps, _relative, _with_oracle, built_in_pictures
from tests.models.qwen.tiny import reference_model, save, tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(reference_model("3"), tmp_path_factory.mktemp("qwen"), "3")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two small pictures and answers of a few pages, on one thread."""
    monkeypatch.setattr(checks, "SIZES", ((96, 64), (40, 70)))
    monkeypatch.setattr(answers, "STEPS", 10)
    for name, value in (("MAX_CONTEXT", 800), ("PAGE_SIZE", 4), ("CPU_THREADS", 1)):
        monkeypatch.setenv(f"PHOTONLITE_{name}", str(value))
    yield
    text.axes_on.cache_clear()


def rows_of(model: Path | None, dtype: str = "float32") -> dict[str, Row]:
    """The rows by what they check, without numbers."""
    rows = photonlite.verify(model, device="cpu", dtype=dtype)
    return {row.check.lstrip("0123456789 ").split(" of ")[0]: row for row in rows}


ALL = ["answers, pipelined", "preprocessing", "features", "logits", "greedy tokens"]


@pytest.mark.long
@pytest.mark.usefixtures("short")
def test_a_right_checkpoint_agrees_in_everything(folder: Path) -> None:
    rows = rows_of(folder)

    assert list(rows) == ALL
    assert all(row.passed for row in rows.values()), rows
    assert [row.against.split()[0] for row in rows.values()] == ["itself,", *["transformers"] * 4]
    assert rows["greedy tokens"].check.endswith("9 answers")  # a caption and two questions of two pictures, and others


@pytest.mark.long
@pytest.mark.usefixtures("short")
def test_half_precision_has_wider_limits(folder: Path) -> None:
    rows = rows_of(folder, "bfloat16")

    assert list(rows) == ALL
    assert all(row.passed for row in rows.values()), rows


@pytest.mark.long
@pytest.mark.usefixtures("short")
def test_a_family_without_another_implementation_is_compared_with_itself() -> None:
    (row,) = rows_of(None).values()

    assert (row.against, row.difference, row.passed) == ("itself, one step at a time", "none", True)


@pytest.mark.long
@pytest.mark.usefixtures("short")
def test_quantised_files_are_compared_with_themselves(folder: Path, tmp_path: Path) -> None:
    """No other implementation reads photonlite's own form."""
    photonlite.quantize(folder, tmp_path / "int8", weights="int8")
    (row,) = rows_of(tmp_path / "int8").values()
    assert (row.against_itself, row.passed) == (True, True)


# ---- what is wrong is found, and where


def turned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "rotary_axes", lambda config: [0] * sum(config.sections))
    text.axes_on.cache_clear()


def unturned(monkeypatch: pytest.MonkeyPatch) -> None:
    rotary_angles = vision._rotary_angles
    monkeypatch.setattr(vision, "_rotary_angles", lambda *given: 0 * rotary_angles(*given))


def reversed_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "lay_out", lambda model, request, images: LAY_OUT(model, request, images[::-1]))


def swapped_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    def lay_out(*given: Any) -> layout.Layout:
        found = LAY_OUT(*given)
        assert found.turns is not None
        axes = found.turns.axes[:, [0, 2, 1]].copy()
        return dataclasses.replace(found, turns=dataclasses.replace(found.turns, axes=axes))

    monkeypatch.setattr(engine, "lay_out", lay_out)


def other_kept_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache does not look at digits, and the second turn stands behind a number other than the answer."""
    digits, answers_of = set(tokenizer().encode("0123456789").ids), answers._answers

    def blind_key(parent: bytes, tokens: Iterable[Token], *images: Any) -> bytes:
        return page_key(parent, [Token(0) if token.id in digits else token for token in tokens], *images)

    def with_another_number(*given: Any, **options: Any) -> dict[str, Answer]:
        found = answers_of(*given, **options)
        if first := found.get("first turn"):
            other = first.result["answer"].translate(str.maketrans("0123456789", "5678901234"))
            found["first turn"] = dataclasses.replace(first, result={"answer": other})
        return found

    monkeypatch.setattr(manager, "page_key", blind_key)
    monkeypatch.setattr(answers, "_answers", with_another_number)


LAY_OUT = layout.lay_out


@pytest.mark.long
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("spoil", "found", "where"),
    [
        (turned, {"logits", "greedy tokens"}, "query"),
        (unturned, {"features", "logits", "greedy tokens"}, "query"),
        (reversed_images, {"greedy tokens"}, "in several"),
        (swapped_axes, {"greedy tokens"}, "in second turn"),
        (other_kept_pages, {"greedy tokens"}, "in second turn"),
    ],
)
def test_what_is_wrong_is_found_where_it_is_wrong(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[pytest.MonkeyPatch], None],
    found: set[str],
    where: str,
) -> None:
    spoil(monkeypatch)

    rows = rows_of(folder)

    assert {check for check, row in rows.items() if not row.passed} - {"answers, pipelined"} == found
    assert where in rows["greedy tokens"].difference


@pytest.mark.long
@pytest.mark.usefixtures("short")
def test_kernels_that_compute_something_else_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def logits(self: UnfusedModel, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden).roll(1, dims=-1)

    monkeypatch.setattr(checks, "has_fused_kernels", lambda device, config: True)
    monkeypatch.setattr(UnfusedModel, "logits", logits, raising=False)

    rows = rows_of(folder)

    assert [check for check, row in rows.items() if not row.passed] == ["answers, fused", "greedy tokens"]
    assert "query 0.0" in rows["answers, fused"].difference


# ---- the other implementation


@pytest.mark.long
@pytest.mark.usefixtures("short")
def test_the_other_implementation_loads_the_very_file(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "model" / "finetune.safetensors")
    others = save(reference_model("3", seed=1), tmp_path / "others", "3")
    shutil.copy(others / "model.safetensors", tmp_path / "model")

    rows = rows_of(tmp_path / "model" / "finetune.safetensors")

    assert list(rows) == ALL
    assert all(row.passed for row in rows.values()), rows


class OtherImplementation:
    """An oracle whose logits are those of a table, by the last token of the prompt."""

    name = "another"

    def __init__(self, logits: dict[int, Tensor]) -> None:
        self._logits = logits

    def preprocessing(self, image: Any) -> tuple[Tensor, Tensor]:
        return torch.ones(1), torch.ones(1)

    def features(self, images: Any) -> tuple[Tensor, Tensor]:
        return torch.ones(1), torch.ones(1)

    def logits(self, prompt: Any, images: Any, answer: Any) -> tuple[Tensor, Tensor]:
        return self._logits[prompt[-1].id], self._logits[prompt[-1].id]


def answer_of(prompt: int, *ids: int) -> Answer:
    grammar = TextGrammar(Vocabulary(end=0, answer=-1, coordinate=-1, size=-1), 9)
    request = Request("query", (Token(prompt),), grammar, 9, SamplingSettings())
    return Answer(request, (), tuple(map(Token, ids)), {"answer": ""})


TIE = torch.tensor([[0.0, 5.0, 5.0001], [9.0, 0.0, 0.0]])
CLEAR = torch.tensor([[0.0, 5.0, 4.0], [9.0, 0.0, 0.0]])


def greedy_row(*engines: dict[str, Answer]) -> Row:
    oracle = OtherImplementation({1: TIE, 2: CLEAR})
    *_, row = _with_oracle(oracle, engines, built_in_pictures()[:1], exact=True)
    return row


def test_a_tie_excuses_the_token_at_the_tie_alone() -> None:
    tied, wrong = {"query 0": answer_of(1, 1, 0)}, {"query 1": answer_of(2, 2, 0)}

    assert (greedy_row(tied).difference, greedy_row(tied).passed) == ("1 at a tie", True)
    assert (greedy_row(tied | wrong).difference, greedy_row(tied | wrong).passed) == ("in query 1; 1 at a tie", False)
    assert not greedy_row({"query 0": answer_of(1, 1, 1)}).passed  # a wrong token behind the tie


def test_the_answers_of_every_engine_are_compared() -> None:
    right = {"query 1": answer_of(2, 1, 0)}

    assert greedy_row(right, right).passed
    assert greedy_row(right, {"query 1": answer_of(2, 2, 0)}).difference == "in query 1"


@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_no_number_fails_in_any_place(place: int) -> None:
    values = [torch.ones(3) for _ in range(3)]
    values[place] = torch.tensor([1.0, float("nan"), 1.0])

    assert not _relative("logits", "another", [(value, torch.ones(3)) for value in values], 1e-4).passed
    assert not _relative("logits", "another", [(torch.ones(3), value) for value in values], 1e-4).passed
    gaps, allowed = _gaps(torch.stack(values), [0, 0, 0], 1e-4)
    assert not bool((gaps <= allowed).all())


# ---- the generator


def test_the_callers_code_runs_outside_of_inference_mode(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "ask", lambda model, pictures, together: {})
    layer = torch.nn.Linear(2, 2)

    rows = photonlite.verify(folder, device="cpu", dtype="float32")
    for number, row in enumerate(rows):
        assert not torch.is_inference_mode_enabled(), row
        layer(torch.ones(1, 2)).sum().backward()
        if number == 2:
            break

    assert layer.weight.grad is not None


def test_a_model_that_is_not_there_is_refused_as_by_load(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        rows_of(tmp_path / "nothing")


def test_the_built_in_pictures_are_the_same_everywhere() -> None:
    pictures = built_in_pictures()

    assert [picture.size for picture in pictures] == [(640, 480), (333, 500), (97, 31)]
    assert all(len(set(picture.resize((9, 9)).tobytes())) > 20 for picture in pictures)
