import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from PIL import ExifTags, Image

from photonlite.cli import main
from photonlite.cli.dataset import DATA_SETS, DataSet
from photonlite.config import ImageLimits
from photonlite.errors import PromptError
from photonlite.images.decode import load_image
from photonlite.results import Detections, Segments

supervision = pytest.importorskip("supervision")
Captured = pytest.CaptureFixture[str]
BOX = {"x_min": 0.25, "y_min": 0.5, "x_max": 0.75, "y_max": 1.0}


class Finder:
    """Finds the first of the names in every image that can be read, once in the lower middle."""

    max_batch = 4

    def __init__(self) -> None:
        self.asked: list[tuple[Any, dict[str, Any]]] = []
        self.finish_reason = "stop"
        self.refusal = ""
        self.path = "M0 0H1V1H0Z"

    @property
    def image_limits(self) -> ImageLimits:
        return ImageLimits.from_env()

    def load(self, *_: Any, **__: Any) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def detect(self, image: Any, object: list[str], **more: Any) -> Detections:
        return Detections([{**BOX, "label": object[0], "score": 0.5}], **self._info(image, object, more))

    def segment(self, image: Any, object: list[str], **more: Any) -> Segments:
        item = {"path": self.path, "bbox": BOX, "label": object[0], "score": 0.5}
        return Segments([item], **self._info(image, object, more))

    def _info(self, image: Any, object: list[str], more: dict[str, Any]) -> dict[str, Any]:
        if self.refusal:
            raise PromptError(self.refusal)
        self.asked.append((object, more))
        return {"picture_size": load_image(image).size, "names": object, "finish_reason": self.finish_reason}


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

    names, asked = finder.asked[0]
    assert (names, asked["settings"], asked["min_score"]) == (["cup", "pen"], {"max_objects": 9}, 0.25)
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


def test_yolo_has_one_line_for_an_object_of_two_parts_one_of_which_has_a_hole(finder: Finder) -> None:
    finder.path = "M0 0H.5V1H0Z M.125 .25V.75H.375V.25Z M.75 0H1V1H.75Z"

    assert main(["export", "photos/a.png", "--object", "cup", "--format", "yolo", "--task", "segment"]) == 0

    assert len(Path("export-yolo/labels/a.txt").read_text().splitlines()) == 1
    [(_, _, found)] = reread("yolo", "export-yolo")
    [filled] = found.mask
    assert filled.sum() == pytest.approx(20 * 20 + 10 * 20 - 10 * 10, abs=120)  # the outline itself is filled too
    assert not filled[30, 30]  # in the hole
    assert not filled[25, 45]  # between the parts


@pytest.mark.parametrize("form", ["coco", "yolo"])
def test_a_segment_without_an_outline_is_no_box_among_outlines(finder: Finder, form: str) -> None:
    finder.path = ""

    assert main(["export", "photos/a.png", "--object", "cup", "--format", form, "--task", "segment"]) == 0

    if form == "coco":
        assert json.loads(Path("export-coco/annotations.json").read_text())["annotations"] == []
    else:
        assert Path("export-yolo/labels/a.txt").read_text() == ""


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
def test_what_was_answered_is_on_disk_before_the_next_answer_is_used(
    finder: Finder, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read the data set after every image as one finds it when the process is killed there."""
    for name in "bcdef":
        Image.new("RGB", (80, 40), "navy").save(f"photos/{name}.png")
    add, sizes = DATA_SETS[form].add, []

    def added(self: DataSet, *arguments: Any) -> None:
        add(self, *arguments)
        found = list(reread(form, f"photos-{form}"))
        assert all(len(detections) == 1 for _, _, detections in found)
        sizes.append(len(found))

    monkeypatch.setattr(DATA_SETS[form], "add", added)

    assert main(["export", "photos", "--object", "cup", "--format", form]) == 0
    assert sizes == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("form", ["coco", "yolo"])
@pytest.mark.parametrize("step", range(4))
def test_a_killed_export_leaves_a_valid_data_set(
    finder: Finder, form: str, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, done = DataSet._put, 0

    def killed(self: DataSet, name: str, data: bytes) -> None:
        nonlocal done
        if done == step + 2:
            monkeypatch.setattr(DataSet, "_put", lambda *_: None)  # nothing more is written
            raise KeyboardInterrupt
        put(self, name, data)
        done += 1

    monkeypatch.setattr(DataSet, "_put", killed)

    assert main(["export", "photos", "--object", "cup", "--format", form]) == 130
    for _, image, detections in reread(form, f"photos-{form}"):
        assert image.shape == (40, 80, 3)
        assert len(detections) == 1


def test_a_large_file_of_annotations_is_rewritten_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    monkeypatch.setattr(DataSet, "_put", lambda self, name, data: written.append(len(data)) if "json" in name else None)
    data_set = DATA_SETS["coco"](tmp_path, ["cup"])
    for number in range(60):
        data_set.add(f"{number}{100_000 * 'x'}.png", b"", Detections([{**BOX, "label": "cup"}], picture_size=(8, 8)))

    assert max(written) > 5 << 20
    assert sum(written) < 60 << 20  # a MiB an image
    data_set.save()
    assert written[-1] > 60 * 100_000


def test_failures_are_listed_at_the_end_and_the_others_written(finder: Finder, capsys: Captured) -> None:
    Path("photos/bad.png").write_text("no image")
    Image.new("RGB", (80, 40)).save("photos/A.webp")

    assert main(["export", "photos", "--object", "cup", "--format", "yolo", "--output", "cups"]) == 2

    *_, head, first, second = capsys.readouterr().err.splitlines()
    assert head == "photonlite: error: 2 of 5 images failed, the others are in the data set:"
    assert first == "  photos/a.png: its labels would replace those of photos/A.webp: rename one of them"
    assert second.startswith("  photos/bad.png: the image is in no supported image format")
    assert len(reread("yolo", "cups")) == 3


def test_an_image_that_is_given_twice_is_one_image(finder: Finder) -> None:
    assert main(["export", "photos/a.png", "photos", "--object", "cup", "--format", "coco"]) == 0

    rows = json.loads(Path("export-coco/annotations.json").read_text())["images"]
    assert sorted(row["file_name"] for row in rows) == ["a.png", "rare.png", "turned.png"]


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
    assert finder.asked == []


def test_an_error_that_is_no_fault_of_an_image_ends_the_export(finder: Finder, capsys: Captured) -> None:
    finder.refusal = "the model was trained without cups"

    assert main(["export", "photos", "--object", "cup", "--format", "coco"]) == 2
    assert capsys.readouterr().err == "photonlite: error: the model was trained without cups\n"
    assert not Path("photos-coco").exists()


def test_a_full_disk_is_not_blamed_on_an_image(
    finder: Finder, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)

    assert main(["export", "photos", "--object", "cup", "--format", "coco"]) == 2
    assert "--output photos-coco is not whole (No space left on device): make room" in capsys.readouterr().err


def test_an_export_needs_no_further_package(finder: Finder, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("cv2", "supervision", "av"):
        monkeypatch.setitem(sys.modules, package, None)

    assert main(["export", "photos", "--object", "cup", "--format", "yolo"]) == 0


def write_strange_images(folder: Path) -> None:
    """Write images that readers of data sets cannot read, or see otherwise than Pillow."""
    plain = Image.new("RGB", (80, 40), "navy")
    plain.convert("F").save(folder / "float.tif")
    plain.convert("CMYK").save(folder / "cmyk.jpg")
    plain.convert("RGBA").save(folder / "alpha.png")
    plain.convert("1").save(folder / "bits.png")
    plain.convert("P").save(folder / "palette.png")
    Image.fromarray(np.full((40, 80), 0x8000, np.uint16)).save(folder / "deep.png")
    plain.save(folder / "pages.tif", save_all=True, append_images=[plain])
    plain.save(folder / "film.webp", save_all=True, append_images=[Image.new("RGB", (80, 40))], duration=40)
    plain.save(folder / "more.mpo.jpg", "MPO", save_all=True, append_images=[plain])
    plain.save(folder / "photo.jfif", "JPEG", exif=b"Exif\0\0MM\0*\0\0\xff\xff no directory")
    plain.save(folder / "no suffix", "JPEG")
    plain.save(folder / "a jpeg.png", "JPEG")
    plain.save(folder / "UPPER.PNG")
    plain.save(folder / "two\nlines, 'quotes' \" and #.png")
    plain.save(os.fsencode(folder) + b"/caf\xe9.png", "PNG")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have names in Unicode only")
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("form", ["coco", "yolo"])
def test_every_image_that_is_answered_is_in_the_data_set_and_read_by_opencv(finder: Finder, form: str) -> None:
    write_strange_images(Path("photos"))

    assert main(["export", "photos", "--object", "cup", "--format", form]) == 0

    found = {
        Path(path).name: (image.shape, len(detections)) for path, image, detections in reread(form, f"photos-{form}")
    }
    assert {"café.png", "a jpeg.jpg", "no suffix.jpg", "photo.jpg", "UPPER.PNG", "more.mpo.jpg"} <= found.keys()
    assert len(found) == 18
    assert set(found.values()) == {((40, 80, 3), 1)}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_copies_stand_as_the_boxes_do_whatever_the_orientation(finder: Finder, orientation: int) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    marked = Image.new("RGB", (80, 40))
    marked.paste("red", (0, 0, 40, 20))
    marked.save("photos/b.jpg", exif=exif)

    assert main(["export", "photos/b.jpg", "--object", "cup", "--format", "coco"]) == 0

    [copied] = Path("export-coco/images").iterdir()
    [row] = json.loads(Path("export-coco/annotations.json").read_text())["images"]
    with Image.open(copied) as copy:
        assert (copy.size, copy.getexif().get(ExifTags.Base.Orientation, 1)) == ((row["width"], row["height"]), 1)
        assert np.abs(np.asarray(copy).astype(int) - np.asarray(load_image("photos/b.jpg"))).max() == 0


def test_bad_files_cost_themselves_alone(finder: Finder, capsys: Captured) -> None:
    shutil.copy("photos/turned.jpg", f"photos/{251 * 'x'}")
    Path("photos/empty.png").touch()
    whole = Path("photos/turned.jpg").read_bytes()
    Path("photos/cut.jpg").write_bytes(whole[: len(whole) // 2])
    Path("photos/script.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0")
    Path("photos/folder.png").mkdir()

    assert main(["export", "photos", "--object", "cup", "--format", "yolo"]) == 2

    skipped, head, *failed = capsys.readouterr().err.splitlines()
    assert "folder.png/" in skipped
    assert head == "photonlite: error: 4 of 7 images failed, the others are in the data set:"
    names = [line.split(":")[0].removeprefix("  photos/") for line in failed]
    assert names == ["cut.jpg", "empty.png", "script.png", 251 * "x"]
    assert len(reread("yolo", "photos-yolo")) == 3


def test_the_limit_of_pixels_is_that_of_the_settings(finder: Finder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # Pillow's own

    assert main(["export", "photos", "--object", "cup", "--format", "yolo"]) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have names in Unicode only")
def test_the_yaml_is_valid_whatever_the_folder_is_called(finder: Finder, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    out = tmp_path / os.fsdecode(b'two\nlines: "caf\xe9" \x7f \xe2\x80\xa8 \xc2\x85 \xf0\x9f\x98\x80')

    assert main(["export", "photos", "--object", "cup", "--format", "yolo", "--output", str(out)]) == 0
    assert yaml.safe_load((out / "data.yaml").read_text(encoding="utf-8"))["path"] == str(out)


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
