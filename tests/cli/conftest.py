"""A fake model in place of the one that `photonlite.load` returns."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from photonlite.images.decode import load_image
from photonlite.results import Answer, Caption, Detections, Points, Segments

BOX = {"x_min": 0.25, "y_min": 0.25, "x_max": 0.75, "y_max": 0.75}


class FakeModel:
    """Finds one object in the middle of every image and records its calls."""

    max_batch = 2
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.loaded: list[dict[str, Any]] = []
        self.asked: list[tuple[Any, ...]] = []
        self.given: list[Any] = []
        self.error: BaseException | None = None
        self.forms: list[dict[str, Any]] = []
        self.strict: list[bool] = []
        self.searches: list[dict[str, Any]] = []
        self.finish_reason: str | None = "stop"

    def load(self, model: str | None = None, **options: Any) -> "FakeModel":
        self.loaded.append({"model": model, **options})
        return self

    def detect(
        self, image: Image.Image, object: Any, *, settings: Any = None, strict: bool = False, **search: Any
    ) -> Detections:
        self._ask("detect", image, object, settings, strict=strict)
        self.searches.append(search)
        return Detections([{**BOX, "label": object, "score": 0.5}], finish_reason=self.finish_reason)

    def point(
        self, image: Image.Image, object: Any, *, settings: Any = None, strict: bool = False, **search: Any
    ) -> Points:
        self._ask("point", image, object, settings, strict=strict)
        self.searches.append(search)
        return Points([{"x": 0.5, "y": 0.5, "label": object, "score": 0.5}], finish_reason=self.finish_reason)

    def segment(
        self, image: Image.Image, object: Any, *, settings: Any = None, strict: bool = False, **search: Any
    ) -> Segments:
        self._ask("segment", image, object, settings, strict=strict)
        self.searches.append(search)
        outline = {"path": "M0 0L1 0L1 1Z", "bbox": BOX, "polygon": [[0.25, 0.25], [0.75, 0.25], [0.75, 0.75]]}
        return Segments([{**outline, "label": object, "score": 0.5}], finish_reason=self.finish_reason)

    def caption(
        self, image: Image.Image, length: str, *, stream: bool, settings: Any = None, strict: bool = False
    ) -> Caption:
        self._ask("caption", image, length, settings, strict=strict)
        return Caption(self._text(f"a {length} story", stream), finish_reason=self.finish_reason)

    def query(
        self,
        image: Image.Image,
        question: str,
        *,
        stream: bool,
        reasoning: bool,
        settings: Any = None,
        strict: bool = False,
        **form: Any,
    ) -> Answer:
        self._ask("query", image, question, settings, strict=strict)
        self.forms.append(form)
        if "schema" in form:
            return Answer(Decimal(2), text='{"count": 2}', finish_reason=self.finish_reason)
        thoughts = {"text": "hm", "grounding": []} if reasoning else None
        return Answer(self._text("two of them", stream), thoughts, finish_reason=self.finish_reason)

    def _ask(self, skill: str, image: Any, *what: Any, strict: bool) -> None:
        self.given.append(image)
        self.asked.append((skill, load_image(image), *what))
        self.strict.append(strict)
        if self.error is not None:
            raise self.error

    @staticmethod
    def _text(text: str, stream: bool) -> str | Iterator[str]:
        return iter([text[:3], text[3:]]) if stream else text


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeModel:
    model = FakeModel()
    monkeypatch.setattr("photonlite.api.load", model.load)
    return model


@pytest.fixture
def image(tmp_path: Path) -> str:
    path = tmp_path / "desk.png"
    Image.new("RGB", (64, 48), "navy").save(path)
    return str(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two images, b.jpg and a.png, a broken one, c.png, and other files."""
    path = tmp_path / "photos"
    (path / "inside").mkdir(parents=True)
    Image.new("RGB", (32, 32), "green").save(path / "b.jpg")
    Image.new("RGB", (32, 32), "red").save(path / "a.png")
    Image.new("RGB", (32, 32), "red").save(path / "inside" / "d.png")
    (path / "c.png").write_bytes(b"no image at all")
    (path / "notes.txt").write_text("notes")
    (path / "._a.png").write_bytes(b"bookkeeping")
    return path
