import io
import json
from pathlib import Path

import pytest
from PIL import Image

from photonlite.cli.run import PlotTarget, to_json
from photonlite.errors import InputError

IMAGE = Image.new("RGB", (8, 8), "teal")


@pytest.mark.parametrize(
    ("encoding", "label", "shown"),
    [
        ("utf-8", "café 🍌", '{"label": "café 🍌"}'),
        ("ascii", "café 🍌", r'{"label": "caf\u00e9 \ud83c\udf4c"}'),
        # The name of a file whose bytes are no UTF-8.
        ("utf-8", "a\udcff.png", r'{"label": "a\udcff.png"}'),
    ],
)
def test_json_is_escaped_only_where_stdout_cannot_encode_it(
    encoding: str, label: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))

    assert to_json({"label": label}) == shown
    assert json.loads(to_json({"label": label}, indent=2)) == {"label": label}


def test_one_image_is_drawn_into_the_file_whose_folder_is_created(tmp_path: Path) -> None:
    out = tmp_path / "new" / "boxes.png"

    assert PlotTarget(str(out), "detect", ["desk.png"], several=False).save(IMAGE, "desk.png") == out
    with Image.open(out) as drawn:
        assert drawn.size == (8, 8)


def test_one_image_is_drawn_into_an_existing_folder(tmp_path: Path) -> None:
    path = PlotTarget(str(tmp_path), "detect", ["desk.jpg"], several=False).save(IMAGE, "desk.jpg")

    assert path == tmp_path / "desk-detect.png"
    assert path.is_file()


def test_several_images_are_drawn_into_a_folder_with_unique_names(tmp_path: Path) -> None:
    sources = ["a/1.jpg", "b/1.png", "-"]
    target = PlotTarget(str(tmp_path / "new"), "point", sources, several=True)

    names = [target.save(IMAGE, source).name for source in sources]

    assert names == ["1-point.png", "1-point-2.png", "stdin-point.png"]


def test_a_drawing_never_overwrites_an_input_image(tmp_path: Path) -> None:
    sources = [str(tmp_path / "a.png"), str(tmp_path / "a-point.png")]
    target = PlotTarget(str(tmp_path), "point", sources, several=True)

    assert target.save(IMAGE, sources[0]) == tmp_path / "a-point-2.png"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("boxes", "'' is not an image format"), ("boxes.txt", "'.txt' is not an image"), ("desk.png", "overwrite")],
)
def test_an_unusable_plot_file_is_refused_at_once(tmp_path: Path, name: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        PlotTarget(str(tmp_path / name), "detect", [str(tmp_path / "desk.png")], several=False)


def test_a_file_for_several_images_is_refused(image: str) -> None:
    with pytest.raises(InputError, match="several images need a folder"):
        PlotTarget(image, "detect", ["a.png", "b.png"], several=True)
