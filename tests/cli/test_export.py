import json
import sys
import weakref
from pathlib import Path
from typing import Any, Self

import pytest
from PIL import ExifTags, Image

from photonlite.cli import main
from photonlite.errors import PromptError
from photonlite.images.decode import load_image
from photonlite.results import Detections, Segments

supervision = pytest.importorskip("supervision")
Captured = pytest.CaptureFixture[str]
BOX = {"x_min": 0.25, "y_min": 0.5, "x_max": 0.75, "y_max": 1.0}


class Finder:
    """Finds the first of the names in every image that can be read, once in the lower middle."""

    def __init__(self) -> None:
        self.tasks: list[dict[str, Any]] = []
        self.finish_reason = "stop"
        self.refusal = ""
        self.path = "M0 0H1V1H0Z"

    def load(self, *_: Any, **__: Any) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def batch(self, tasks: list[dict[str, Any]], *, progress: bool) -> list[Any]:
        self.tasks = tasks
        return [self.answer(index, task) for index, task in enumerate(tasks)]

    def answer(self, index: int, task: dict[str, Any]) -> Any:
        try:
            if self.refusal:
                raise PromptError(self.refusal)
            info: Any = {"picture_size": load_image(task["image"]).size, "names": task["object"]}
        except Exception as error:
            error.args = (f"task {index}: {error}",)
            return error
        item = {**BOX, "label": task["object"][0], "score": 0.5}
        if task["skill"] == "segment":
            item = {"path": self.path, "bbox": BOX, "label": task["object"][0], "score": 0.5}
            return Segments([item], finish_reason=self.finish_reason, **info)
        return Detections([item], finish_reason=self.finish_reason, **info)


@pytest.fixture
def finder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Finder:
    """Answers in a folder with photos/: a plain image, one turned by EXIF, and one of a rare format."""
    monkeypatch.chdir(tmp_path)
    photos = tmp_path / "photos"
    photos.mkdir()
    Image.new("RGB", (80, 40), "navy").save(photos / "a.png")
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.new("RGB", (40, 80), "navy").save(photos / "turned.jpg", exif=exif)
    Image.new("RGB", (80, 40), "navy").save(photos / "rare.gif")
    found = Finder()
    monkeypatch.setattr("photonlite.api.load", found.load)
    return found


def reread(form: str, folder: str) -> Any:
    data_set = supervision.DetectionDataset
    if form == "coco":
        return data_set.from_coco(f"{folder}/images", f"{folder}/annotations.json")
    return data_set.from_yolo(f"{folder}/images", f"{folder}/labels", f"{folder}/data.yaml")


@pytest.mark.parametrize("form", ["coco", "yolo"])
@pytest.mark.parametrize("task", ["detect", "segment"])
def test_supervision_reads_back_what_was_found(finder: Finder, form: str, task: str, capsys: Captured) -> None:
    command = ["export", "photos", "--object", "cup", "--object", "pen", "--format", form, "--task", task]
    assert main([*command, "--max-objects", "9", "--min-score", "0.25"]) == 0

    assert finder.tasks[0]["object"] == ["cup", "pen"]
    assert (finder.tasks[0]["settings"], finder.tasks[0]["min_score"]) == ({"max_objects": 9}, 0.25)
    assert capsys.readouterr().out == f"photos-{form}: 3 images, 3 cup, 0 pen\n"
    found = reread(form, f"photos-{form}")
    assert found.classes == ["cup", "pen"]
    assert sorted(Path(path).name for path, _, _ in found) == ["a.png", "rare.png", "turned.png"]
    for _, image, detections in found:
        assert image.shape == (40, 80, 3)
        assert detections.class_id.tolist() == [0]
        assert detections.xyxy[0] == pytest.approx([20, 20, 60, 40], abs=1.01)


def test_outlines_of_several_parts_and_with_holes_are_polygons_with_scores(finder: Finder) -> None:
    hole = "M0 0H.5V1H0Z M.125 .25V.75H.375V.25Z"
    finder.path = f"{hole} M.75 0H1V1H.75Z"

    assert main(["export", "photos/a.png", "--object", "cup", "--format", "coco", "--task", "segment"]) == 0

    data_set = json.loads(Path("export-coco/annotations.json").read_text())
    [annotation] = data_set["annotations"]
    assert (annotation["iscrowd"], annotation["score"], len(annotation["segmentation"])) == (0, 0.5, 2)
    assert annotation["area"] == pytest.approx(20 * 20 + 10 * 20 - 10 * 10, abs=40)
    assert [each["file_name"] for each in data_set["images"]] == ["a.png"]
    assert Path("export-coco/images/a.png").read_bytes() == Path("photos/a.png").read_bytes()


def test_yolo_has_one_polygon_for_a_ring_with_its_hole_and_one_for_a_further_part(finder: Finder) -> None:
    finder.path = "M0 0H.5V1H0Z M.125 .25V.75H.375V.25Z M.75 0H1V1H.75Z"

    assert main(["export", "photos/a.png", "--object", "cup", "--format", "yolo", "--task", "segment"]) == 0

    [(_, _, found)] = reread("yolo", "export-yolo")
    assert len(found) == 2
    filled = found.mask.any(axis=0)
    assert filled.sum() == pytest.approx(20 * 20 + 10 * 20 - 10 * 10, abs=90)
    assert not filled[30, 30]  # in the hole


def test_the_yaml_says_where_trainers_find_the_images(finder: Finder) -> None:
    yaml = pytest.importorskip("yaml")

    assert main(["export", "photos", "--object", "a: café 😀", "--format", "yolo"]) == 0

    described = yaml.safe_load(Path("photos-yolo/data.yaml").read_text(encoding="utf-8"))
    assert described["names"] == ["a: café 😀"]
    assert described["nc"] == 1
    assert Path(described["path"]).is_absolute()
    for part in ("train", "val"):
        assert len(list(Path(described["path"], described[part]).iterdir())) == 3


@pytest.mark.parametrize("form", ["coco", "yolo"])
def test_masks_of_one_image_are_held_at_a_time(finder: Finder, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Any]] = []
    most = 0
    convert = Segments.to_supervision

    def counted(self: Segments, *arguments: Any, **more: Any) -> Any:
        nonlocal most
        detections = convert(self, *arguments, **more)
        made.append(weakref.ref(detections.mask))
        most = max(most, sum(each() is not None for each in made))
        return detections

    monkeypatch.setattr(Segments, "to_supervision", counted)
    for name in "bcdef":
        Image.new("RGB", (80, 40), "navy").save(f"photos/{name}.png")

    assert main(["export", "photos", "--object", "cup", "--format", form, "--task", "segment"]) == 0
    assert most <= 2  # the one before goes when the next one is there


def test_failures_are_listed_at_the_end_and_the_others_written(finder: Finder, capsys: Captured) -> None:
    Path("photos/bad.png").write_text("no image")
    Image.new("RGB", (80, 40)).save("photos/A.webp")

    assert main(["export", "photos", "--object", "cup", "--format", "yolo", "--output", "cups"]) == 2

    *_, head, first, second = capsys.readouterr().err.splitlines()
    assert head == "photonlite: error: 2 of 5 images failed, the others are in the data set:"
    assert first == "  photos/a.png: its labels would replace those of photos/A.webp: rename one of them"
    assert second.startswith("  photos/bad.png: 'photos/bad.png' is in no supported image format")
    assert len(reread("yolo", "cups")) == 3


def test_without_any_answer_nothing_is_written(finder: Finder, capsys: Captured) -> None:
    Path("bad.png").write_text("no image")

    assert main(["export", "bad.png", "--object", "cup", "--format", "coco", "--output", "cups"]) == 2
    assert "1 of 1 images failed, nothing was written" in capsys.readouterr().err
    assert not Path("cups").exists()


def test_a_limit_that_cut_lists_short_is_reported(finder: Finder, capsys: Captured) -> None:
    finder.finish_reason = "max_objects"

    assert main(["export", "photos", "--object", "cup", "--format", "coco"]) == 0
    assert "in 3 images a limit cut the list short: raise --max-objects" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["photos", "--object", "cup"], "required: --format"),
        (["photos", "--format", "coco"], "required: --object"),
        (["photos", "--object", "cup", "--format", "coco", "--output", "photos"], "there is something already"),
        (["-", "--object", "cup", "--format", "coco"], "in place of -"),
        (["https://a.example/b.png", "--object", "cup", "--format", "coco"], "in place of -, URLs and data URIs"),
        (["data:image/png;base64,AA==", "--object", "cup", "--format", "coco"], "in place of -, URLs and data URIs"),
        (["photos", "--object", "cup", "--format", "voc"], "invalid choice"),
    ],
)
def test_wrong_arguments_are_refused(finder: Finder, arguments: list[str], complaint: str, capsys: Captured) -> None:
    assert main(["export", *arguments]) == 2
    assert complaint in capsys.readouterr().err
    assert finder.tasks == []


def test_an_error_that_is_no_fault_of_an_image_ends_the_export(finder: Finder, capsys: Captured) -> None:
    finder.refusal = "the model was trained without cups"

    assert main(["export", "photos", "--object", "cup", "--format", "coco"]) == 2
    assert capsys.readouterr().err == "photonlite: error: the model was trained without cups\n"
    assert not Path("photos-coco").exists()


def test_a_full_disk_is_not_blamed_on_an_image(
    finder: Finder, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def full(source: str, target: Path) -> Path:
        raise OSError(28, "No space left on device", source)

    monkeypatch.setattr("shutil.copyfile", full)

    assert main(["export", "photos", "--object", "cup", "--format", "coco"]) == 2
    assert "--output photos-coco is not whole (No space left on device): make room" in capsys.readouterr().err


def test_a_missing_supervision_says_what_to_install(
    finder: Finder, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setitem(sys.modules, "supervision", None)

    assert main(["export", "photos", "--object", "cup", "--format", "coco"]) == 2
    assert "pip install 'photonlite[supervision]'" in capsys.readouterr().err


@pytest.mark.long
def test_the_shipped_checkpoint_writes_a_data_set(tmp_path: Path) -> None:
    desk, out = Path(__file__).parents[2] / "assets" / "desk.png", str(tmp_path / "desk")
    assert (
        main(["export", str(desk), "--object", "cup", "--object", "banana", "--format", "coco", "--output", out]) == 0
    )

    assert [each["name"] for each in json.loads(Path(out, "annotations.json").read_text())["categories"]] == [
        "cup",
        "banana",
    ]
    [(_, _, detections)] = list(reread("coco", out))
    assert sorted(detections.class_id.tolist()) == [0, 1, 1]
