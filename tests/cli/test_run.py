import base64
import io
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from photonlite.cli import main
from photonlite.cli.run import PlotTarget, to_json
from photonlite.config import ImageLimits
from photonlite.errors import CapacityError, InputError, SettingsError, TileError, TruncatedError
from photonlite.images.decode import load_image

from .conftest import BOX, FakeModel

Captured = pytest.CaptureFixture[str]


def lines(capsys: Captured) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_one_image_gives_its_result_as_indented_json(fake: FakeModel, image: str, capsys: Captured) -> None:
    assert main(["detect", image, "mug"]) == 0

    out, err = capsys.readouterr()
    assert json.loads(out) == {"objects": [{**BOX, "label": "mug", "score": 0.5}]}
    assert out.startswith('{\n  "objects"')
    assert err == ""


def test_a_typed_answer_is_printed_as_plain_json_values(
    fake: FakeModel, image: str, tmp_path: Path, capsys: Captured
) -> None:
    schema = tmp_path / "shelf.json"
    schema.write_text('{"type": "object"}')

    assert main(["query", image, "How many?", "--schema", str(schema)]) == 0

    assert fake.forms == [{"schema": '{"type": "object"}'}]
    assert json.loads(capsys.readouterr().out) == {"answer": {"count": 2}}


def test_urls_are_fetched_with_a_flag(
    fake: FakeModel, image: str, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("photonlite.cli.inputs.fetch_now", lambda url, most: Path(image).read_bytes())
    url, plot = "https://a.example/cup.png?size=2", tmp_path / "out"

    assert main(["detect", url, "mug"]) == 2
    assert "--allow-urls" in capsys.readouterr().err
    assert main(["detect", url, "mug", "--allow-urls", "--json", "--plot", str(plot / "a.png")]) == 0
    [line] = lines(capsys)
    assert line["image"] == url
    assert main(["detect", url, image, "mug", "--allow-urls", "--plot", str(plot)]) == 0
    assert [line["image"] for line in lines(capsys)] == [url, image]


def test_a_data_uri_is_not_printed(fake: FakeModel, image: str, tmp_path: Path, capsys: Captured) -> None:
    uri = "data:image/png;base64," + base64.b64encode(Path(image).read_bytes()).decode()

    assert main(["detect", uri, uri, "mug", "--plot", str(tmp_path)]) == 0
    assert [line["image"] for line in lines(capsys)] == ["data-uri"] * 2
    assert sorted(path.name for path in tmp_path.glob("data*")) == ["data-uri-detect-2.png", "data-uri-detect.png"]


def test_an_unreadable_schema_is_reported_before_the_model_is_loaded(
    fake: FakeModel, image: str, tmp_path: Path
) -> None:
    assert main(["query", image, "How many?", "--schema", str(tmp_path / "missing.json")]) == 2

    assert fake.loaded == []


@pytest.mark.parametrize(
    ("arguments", "asked", "key"),
    [
        (["detect", "mug"], "mug", "objects"),
        (["point", "mug"], "mug", "points"),
        (["segment", "mug"], "mug", "segments"),
        (["caption", "--length", "short"], "short", "caption"),
        (["query", "How many?"], "How many?", "answer"),
    ],
)
def test_each_skill_passes_its_text_to_the_model(
    fake: FakeModel, image: str, capsys: Captured, arguments: list[str], asked: str, key: str
) -> None:
    command, *rest = arguments

    assert main([command, image, *rest, "--seed", "7"]) == 0

    [(skill, asked_about, text, settings)] = fake.asked
    assert (skill, asked_about.size, text, settings) == (command, (64, 48), asked, {"seed": 7})
    assert list(json.loads(capsys.readouterr().out)) == [key]


def test_a_model_gets_an_image_with_its_transparency(fake: FakeModel, tmp_path: Path, capsys: Captured) -> None:
    Image.new("RGBA", (64, 48)).save(path := tmp_path / "clear.png")

    assert main(["detect", str(path), "mug"]) == main(["detect", str(path), str(path), "mug"]) == 0

    whites = {load_image(given, ImageLimits(on_white=True)).getpixel((0, 0)) for given in fake.given}
    assert (len(fake.given), whites) == (3, {(255, 255, 255)})


def test_model_options_reach_load(fake: FakeModel, image: str) -> None:
    given = {"model": "owner/name", "revision": "v1", "device": "cpu", "dtype": "float32"}
    given |= {"weights": "int4", "vision_weights": "int8"}
    main(["detect", image, "mug", *(part for name in given for part in (f"--{name.replace('_', '-')}", given[name]))])

    assert fake.loaded == [given | {"engine": {}}]


def test_without_options_the_model_uses_its_defaults(fake: FakeModel, image: str) -> None:
    main(["detect", image, "mug"])

    auto = dict.fromkeys(("device", "dtype", "weights", "vision_weights"), "auto")
    assert fake.loaded == [{"model": None, "revision": None, "engine": {}} | auto]
    assert fake.asked[0][-1] is None


def test_all_settings_reach_the_model(fake: FakeModel, image: str) -> None:
    flags = "--temperature 0.5 --top-p 0.3 --top-k 7 --repetition-penalty 1.3 --max-tokens 9 --max-objects 4 --seed 1"
    main(["detect", image, "mug", *flags.split()])

    settings = {"temperature": 0.5, "top_p": 0.3, "top_k": 7, "repetition_penalty": 1.3, "max_tokens": 9}
    settings |= {"max_objects": 4, "seed": 1}
    assert fake.asked[0][-1] == settings


@pytest.mark.parametrize("command", ["detect", "point", "segment"])
def test_several_objects_are_asked_for_at_once(fake: FakeModel, image: str, command: str) -> None:
    assert main([command, "--object", "mug", image, "--object", "key, ring", "--min-score", "0.5"]) == 0
    assert main([command, image, "--object", "mug", "--overlap", "best"]) == 0

    assert [asked[2] for asked in fake.asked] == [["mug", "key, ring"], "mug"]
    assert fake.searches == [{"min_score": 0.5}, {"overlap": "best"}]


def test_tiles_reach_the_model_as_they_are_given(fake: FakeModel, image: str) -> None:
    main(["detect", image, "mug", "--tile", "3x2"])

    assert fake.searches == [{"tile": "3x2"}]


def test_one_name_that_reads_like_several_is_pointed_out(fake: FakeModel, image: str, capsys: Captured) -> None:
    main(["detect", image, "banana, cup"])

    assert "'banana, cup' is looked for as one thing; for several give --object" in capsys.readouterr().err
    assert fake.asked[0][2] == "banana, cup"
    main(["query", image, "red and blue?"])
    main(["detect", image, "--object", "banana, cup", "--object", "key"])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "command", [["detect", "mug"], ["point", "mug"], ["segment", "mug"], ["caption"], ["query", "?"]]
)
def test_strict_reaches_the_model(fake: FakeModel, image: str, command: list[str]) -> None:
    main([command[0], image, *command[1:], "--strict"])
    main([command[0], image, *command[1:]])

    assert fake.strict == [True, False]


def test_a_truncated_answer_is_reported_on_stderr(fake: FakeModel, image: str, capsys: Captured) -> None:
    fake.finish_reason = "max_objects"
    assert main(["detect", image, "mug"]) == 0
    out, err = capsys.readouterr()
    assert list(json.loads(out)) == ["objects"]
    assert err == "photonlite: a limit cut the answer short: raise --max-objects\n"

    fake.finish_reason = "length"
    assert main(["caption", image, "--stream"]) == 0
    assert "raise --max-tokens" in capsys.readouterr().err
    assert main(["caption", image, "--json"]) == 0
    assert lines(capsys) == [{"image": image, "caption": "a normal story", "truncated": True}]


def test_with_strict_a_truncated_answer_fails_its_image_alone(fake: FakeModel, image: str, capsys: Captured) -> None:
    fake.error = TruncatedError("cut short")

    assert main(["caption", image, image, "--strict"]) == 2
    assert [line["error"]["type"] for line in lines(capsys)] == ["TruncatedError"] * 2


def test_json_prints_one_line_with_the_image_name(fake: FakeModel, image: str, capsys: Captured) -> None:
    assert main(["caption", image, "--json"]) == 0

    assert lines(capsys) == [{"image": image, "caption": "a normal story"}]


def test_reasoning_is_printed_with_the_answer(fake: FakeModel, image: str, capsys: Captured) -> None:
    main(["query", image, "How many?", "--reasoning"])

    assert json.loads(capsys.readouterr().out)["reasoning"] == {"text": "hm", "grounding": []}


@pytest.mark.parametrize(
    ("arguments", "text"), [(["caption"], "a normal story\n"), (["query", "How many?"], "two of them\n")]
)
def test_a_stream_prints_plain_text(
    fake: FakeModel, image: str, capsys: Captured, arguments: list[str], text: str
) -> None:
    assert main([arguments[0], image, *arguments[1:], "--stream"]) == 0
    assert capsys.readouterr().out == text


def test_a_stream_of_several_images_is_refused(fake: FakeModel, folder: Path, capsys: Captured) -> None:
    assert main(["caption", str(folder), "--stream"]) == 2
    assert "of one image" in capsys.readouterr().err


def test_a_folder_prints_a_line_per_image_and_continues_after_a_failure(
    fake: FakeModel, folder: Path, capsys: Captured
) -> None:
    missing = str(folder / "missing.png")

    assert main(["detect", missing, str(folder), "mug"]) == 2

    out, err = capsys.readouterr()
    results = {Path(line.pop("image")).name: line for line in map(json.loads, out.splitlines())}
    assert list(results) == ["missing.png", "a.png", "b.jpg", "c.png"]
    assert results["missing.png"]["error"]["type"] == "ImageNotFoundError"
    assert results["c.png"]["error"]["type"] == "ImageDecodeError"
    assert "c.png" in results["c.png"]["error"]["message"]
    assert results["b.jpg"] == {"objects": [{**BOX, "label": "mug", "score": 0.5}]}
    assert len(fake.loaded) == 1
    skipped, failed = err.splitlines()
    assert skipped.endswith("(not an image in a supported format): inside/, notes.txt")
    assert failed == "photonlite: error: 2 of 4 images failed"


def test_several_images_without_a_failure_exit_with_0(fake: FakeModel, image: str, capsys: Captured) -> None:
    assert main(["detect", image, image, "mug"]) == 0
    assert [line["image"] for line in lines(capsys)] == [image, image]
    assert capsys.readouterr().err == ""


def test_a_prompt_too_long_for_one_image_fails_that_image(fake: FakeModel, image: str, capsys: Captured) -> None:
    fake.error = CapacityError("too long")

    assert main(["detect", image, image, "mug"]) == 2
    assert [line["error"]["type"] for line in lines(capsys)] == ["CapacityError"] * 2


def test_tiles_that_do_not_suit_one_image_fail_that_image(fake: FakeModel, image: str, capsys: Captured) -> None:
    fake.error = TileError("a tile of 640 pixels is larger than the image")

    assert main(["detect", image, image, "mug"]) == 2
    assert [line["error"]["type"] for line in lines(capsys)] == ["TileError"] * 2


def test_an_error_common_to_all_images_ends_the_run(fake: FakeModel, image: str, capsys: Captured) -> None:
    fake.error = SettingsError("temperature is -1")

    assert main(["detect", image, image, "mug"]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", "photonlite: error: temperature is -1\n")
    assert len(fake.asked) == 1


def test_the_plot_of_one_image_is_written_and_named(
    fake: FakeModel, image: str, tmp_path: Path, capsys: Captured
) -> None:
    out = tmp_path / "boxes.png"

    assert main(["detect", image, "mug", "--plot", str(out)]) == 0

    stdout, stderr = capsys.readouterr()
    assert json.loads(stdout)["objects"]
    assert stderr == f"drawn in {out}\n"
    with Image.open(out) as drawn, Image.open(image) as original:
        assert drawn.size == original.size
        assert drawn.tobytes() != original.tobytes()


def test_plots_of_several_images_are_named_in_their_lines(
    fake: FakeModel, folder: Path, tmp_path: Path, capsys: Captured
) -> None:
    out = tmp_path / "drawn"

    assert main(["point", f"{folder}/[ab].*", "mug", "--plot", str(out)]) == 0

    plots = [line["plot"] for line in lines(capsys)]
    assert plots == [str(out / "a-point.png"), str(out / "b-point.png")]
    assert all(Path(plot).is_file() for plot in plots)


def test_a_bad_plot_destination_is_reported_before_the_model_is_loaded(fake: FakeModel, image: str) -> None:
    assert main(["detect", image, "mug", "--plot", "boxes.txt"]) == 2
    assert fake.loaded == []


def test_a_bad_image_is_reported_before_the_model_is_loaded(fake: FakeModel) -> None:
    assert main(["detect", "missing.png", "mug"]) == 2
    assert fake.loaded == []


def test_a_forgotten_text_is_reported(fake: FakeModel, folder: Path, capsys: Captured) -> None:
    assert main(["detect", str(folder / "a.png"), str(folder / "b.jpg")]) == 2
    assert "b.jpg' is an image" in capsys.readouterr().err


def test_the_pixel_limit_comes_from_the_environment(
    fake: FakeModel, image: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHOTONLITE_MAX_PIXELS", "100")

    assert main(["detect", image, "mug"]) == 2
    assert "limit of 100" in capsys.readouterr().err


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_progress_bar(
    fake: FakeModel, image: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    assert main(["detect", image, image, "mug"]) == 0

    assert "2/2" in terminal.getvalue()
    assert len(lines(capsys)) == 2


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
    [
        ("boxes", "'' is not an image format"),
        ("boxes.txt", "'.txt' is not an image"),
        ("boxes.xbm", "'.xbm' is not an image format that holds colour: end the name in .png or .jpg"),
        ("boxes.wmf", "'.wmf' is not an image format that holds colour"),
        ("boxes.blp", "'.blp' is not an image format that holds colour"),
        ("desk.png", "overwrite"),
    ],
)
def test_an_unusable_plot_file_is_refused_at_once(tmp_path: Path, name: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        PlotTarget(str(tmp_path / name), "detect", [str(tmp_path / "desk.png")], several=False)


@pytest.mark.parametrize("suffix", [".PNG", ".jpg", ".webp", ".tiff", ".gif", ".avif", ".pdf"])
def test_a_drawing_may_have_any_format_that_holds_colour(tmp_path: Path, suffix: str) -> None:
    target = PlotTarget(str(tmp_path / f"boxes{suffix}"), "detect", [], several=False)

    assert target.save(IMAGE, "desk.png").stat().st_size > 0


def test_a_file_for_several_images_is_refused(image: str) -> None:
    with pytest.raises(InputError, match="several images need a folder"):
        PlotTarget(image, "detect", ["a.png", "b.png"], several=True)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have names in Unicode only")
def test_a_name_that_is_not_in_unicode_is_answered_drawn_and_printed(
    fake: FakeModel, tmp_path: Path, capsys: Captured
) -> None:
    folder, drawn = tmp_path / os.fsdecode(b"fotos\xe9"), tmp_path / os.fsdecode(b"drawn\xe9")
    folder.mkdir()
    name = folder / os.fsdecode(b"caf\xe9.png")
    Image.new("RGB", (64, 48)).save(name)
    (folder / os.fsdecode(b"\xe9.txt")).touch()

    assert main(["detect", str(folder), "mug", "--plot", str(drawn)]) == 0
    assert main(["detect", str(name), "mug", "--plot", str(drawn / "one.png")]) == 0
    assert main(["detect", str(folder), "mug", "--every", "1", "--json"]) == 0
    assert main(["detect", str(folder / os.fsdecode(b"none\xe9.png")), "mug", "--json"]) == 2

    first, *_ = capsys.readouterr().out.splitlines()
    assert json.loads(first)["image"] == str(name)
    assert len(list(drawn.iterdir())) == 2


def test_damaged_metadata_is_no_noise_on_stderr(fake: FakeModel, tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "a.jpg"
    Image.new("RGB", (64, 48)).save(path, exif=b"Exif\0\0MM\0*\0\0\xff\xff no directory")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["detect", str(path), "mug"]) == 0
    assert capsys.readouterr().err == ""
