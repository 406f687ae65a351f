"""The README's Python examples and its table of skills, run with the included checkpoint."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import photonlite

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
ROWS = re.findall(r"^\| `(model\..*?)` \| (.*?) \|$", README, re.MULTILINE)
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def model() -> Iterator[photonlite.VisionModel]:
    with photonlite.load() as model:
        yield model


@pytest.fixture
def names(model: photonlite.VisionModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What the examples know, in a folder with what they read; the Hub's model is the included one."""
    (tmp_path / "assets").symlink_to(ROOT / "assets")
    image = Image.open(ROOT / "assets" / "desk.png").convert("RGB")
    image.save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("photonlite.api.load", lambda *_: model)
    return {"photonlite": photonlite, "model": model, "image": image, "frame": np.asarray(image)}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_an_example_runs(block: str, names: dict[str, Any]) -> None:
    exec(compile(block, "README.md", "exec"), names)


@pytest.mark.parametrize(("call", "result"), ROWS, ids=lambda text: text[:40])
def test_a_row_of_the_table_is_true(call: str, result: str, names: dict[str, Any]) -> None:
    found = eval(call.replace("mug", "cup"), names)  # the image has no mug
    keys = re.findall(r'`\{"(\w+)"', result)
    items = re.findall(r'\[\{(".*?)\}', result)

    assert list(found)[: len(keys)] == keys
    if items:
        [item] = next(iter(found.values()))
        assert list(item) == re.findall(r'"(\w+)"', items[0])


def test_the_examples_are_there() -> None:
    assert len(BLOCKS) >= 3
    assert len(ROWS) >= 6
