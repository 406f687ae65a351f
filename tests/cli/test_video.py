import json
import re
import shlex
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest
from PIL import Image

from photonlite.cli import main, video
from photonlite.cli.inputs import report_skipped
from photonlite.cli.video import open_footage
from photonlite.images.decode import load_image
from photonlite.video.reader import video_frames, video_info
from tests.video.clips import make_clip, make_sound

from .conftest import BOX, FakeModel

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def clip(tmp_path: Path) -> str:
    return str(make_clip(tmp_path / "clip.mp4", frames=10, sound="aac"))


def lines(capsys: Captured) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def kinds(path: Path) -> list[str]:
    with av.open(str(path)) as container:
        return [stream.type for stream in container.streams]


def dark_clip(path: Path, frames: int = 10) -> str:
    make_clip(path, frames, size=(128, 96))
    return str(path)


@pytest.mark.parametrize("command", ["detect", "point", "segment"])
def test_a_video_gives_a_line_for_every_frame(fake: FakeModel, clip: str, capsys: Captured, command: str) -> None:
    assert main([command, clip, "mug"]) == 0

    printed = lines(capsys)
    assert [line["frame"] for line in printed] == list(range(10))
    assert [line["time_s"] for line in printed] == pytest.approx([number / 20 for number in range(10)])
    assert all(len(line[{"detect": "objects"}.get(command, f"{command}s")]) == 1 for line in printed)


def test_a_video_is_drawn_with_its_sound(fake: FakeModel, clip: str, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "found.mp4"

    assert main(["detect", clip, "--object", "mug", "--output", str(out)]) == 0

    assert video_info(out).size == (64, 48)
    assert len(list(video_frames(out))) == 10
    assert kinds(out) == ["video", "audio"]
    assert capsys.readouterr() == ("", f"drawn in {out}: 10 frames\n")


def test_a_store_that_is_named_is_used(fake: FakeModel, clip: str) -> None:
    assert main(["detect", clip, "mug"]) == main(["detect", clip, "mug", "--store", "mine"]) == 0

    assert [loaded["engine"] for loaded in fake.loaded] == [{}, {"store": "mine"}]


def test_lines_and_a_drawn_video_at_once(fake: FakeModel, clip: str, tmp_path: Path, capsys: Captured) -> None:
    assert main(["detect", clip, "mug", "--output", str(tmp_path / "found.mkv"), "--json"]) == 0

    assert len(lines(capsys)) == 10


def test_frames_between_show_the_objects_of_the_last_answer(fake: FakeModel, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "found.mp4"
    source = dark_clip(tmp_path / "clip.mp4")

    assert main(["detect", source, "mug", "--every", "4", "--json", "--output", str(out)]) == 0

    assert [line["frame"] for line in lines(capsys)] == [0, 4, 8]
    assert len(fake.asked) == 3
    plain = [int(frame.pixels[:, :, 1].max()) for frame in video_frames(Path(source))]
    marked = [int(frame.pixels[:, :, 1].max()) for frame in video_frames(out)]
    assert max(plain) < 60 < 100 < min(marked)  # the box and its label have green in them


def test_objects_keep_their_ids(fake: FakeModel, clip: str, capsys: Captured) -> None:
    assert main(["detect", clip, "mug", "--track"]) == 0

    assert [line["objects"][0]["track_id"] for line in lines(capsys)] == [None] + [1] * 9


def test_a_folder_of_frames_is_a_video(fake: FakeModel, tmp_path: Path, capsys: Captured) -> None:
    folder, out = tmp_path / "frames", tmp_path / "found.mp4"
    folder.mkdir()
    for number in range(4):
        Image.new("RGB", (64, 48), (60 * number, 0, 0)).save(folder / f"{number}.png")
    (folder / "2.png").write_bytes(b"no image at all")
    fake_detect = fake.detect
    fake.detect = lambda image, *more, **named: fake_detect(load_image(image), *more, **named)  # type: ignore[method-assign]

    assert main(["detect", str(folder), "mug", "--rate", "10", "--output", str(out), "--json"]) == 2

    out_text, err = capsys.readouterr()
    printed = [json.loads(line) for line in out_text.splitlines()]
    assert [line["time_s"] for line in printed] == [0, 0.1, 0.2, 0.3]
    assert printed[2]["error"]["type"] == "ImageDecodeError"
    assert "2.png' is in no supported image format" in printed[2]["error"]["message"]
    assert printed[3]["objects"] == [{**BOX, "label": "mug", "score": 0.5}]
    assert len(list(video_frames(out))) == 3
    assert "1 of 4 frames failed" in err


def test_a_folder_has_the_same_images_as_frames_and_says_what_else_is_in_it(
    fake: FakeModel, tmp_path: Path, capsys: Captured
) -> None:
    (folder := tmp_path / "frames").mkdir()
    for name in ("a.jpg", "b.jfif", "c.jpe", "d"):
        Image.new("RGB", (64, 48)).save(folder / name, "JPEG")
    Image.new("RGB", (64, 48)).save(folder / "e.PGM", "PPM")
    (folder / "IMG_2.HEIC").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    (folder / "two\nlines.txt").write_text("notes")

    for options in ([], ["--every", "1", "--json"]):
        assert main(["detect", str(folder), "mug", *options]) == 0
        printed = capsys.readouterr()
        assert len(printed.out.splitlines()) == 5
        assert printed.err == (
            f"photonlite: 2 skipped in {str(folder)!r} (not an image in a supported format): "
            "IMG_2.HEIC, 'two\\nlines.txt'\n"
        )


def test_a_long_list_of_other_files_is_cut_short(capsys: Captured) -> None:
    report_skipped("photos", [f"{number}.txt" for number in range(2000)])

    assert capsys.readouterr().err.endswith(", 8.txt, 9.txt and 1990 more\n")


@pytest.mark.parametrize("name", ["clip.ts", "clip.wmv", "clip.flv", "clip.3gp", "clip.part"])
def test_videos_of_every_suffix_are_answered_frame_by_frame(
    fake: FakeModel, tmp_path: Path, capsys: Captured, name: str
) -> None:
    suffix, out = name.removeprefix("clip").replace(".part", ".mp4"), tmp_path / "found.mp4"
    made = make_clip(tmp_path / f"made{suffix}", codec="wmv2" if suffix == ".wmv" else "libx264")

    assert main(["detect", str(made.rename(tmp_path / name)), "mug", "--output", str(out), "--json"]) == 0
    assert len(lines(capsys)) == len(list(video_frames(out))) == 10


@pytest.mark.parametrize(("options", "times"), [([], [0, 0.1, 1.1]), (["--rate", "10"], [0, 0.1, 0.2])])
def test_frames_of_an_animation_keep_their_times_unless_a_rate_is_given(
    fake: FakeModel, tmp_path: Path, capsys: Captured, options: list[str], times: list[float]
) -> None:
    first, *others = (Image.new("RGB", (64, 48), color) for color in ("red", "lime", "blue"))
    first.save(tmp_path / "clip.gif", save_all=True, append_images=others, duration=[100, 1000, 40])

    assert main(["detect", str(tmp_path / "clip.gif"), "mug", "--every", "1", "--json", *options]) == 0
    assert [line["time_s"] for line in lines(capsys)] == times


def test_the_aspect_of_pixels_is_kept(fake: FakeModel, tmp_path: Path) -> None:
    source, out = make_clip(tmp_path / "clip.mp4", aspect=Fraction(16, 11)), tmp_path / "found.mp4"

    assert main(["detect", str(source), "mug", "--output", str(out)]) == 0
    assert video_info(out).pixel_aspect == Fraction(16, 11)


def test_a_folder_without_options_of_videos_stays_a_folder_of_images(
    fake: FakeModel, folder: Path, capsys: Captured
) -> None:
    main(["detect", str(folder), "mug"])

    assert {"image"} <= set(lines(capsys)[0])


def test_a_cut_off_video_is_answered_as_far_as_it_goes(fake: FakeModel, tmp_path: Path, capsys: Captured) -> None:
    path, out = make_clip(tmp_path / "clip.mkv", frames=60), tmp_path / "found.mp4"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 6 // 10])

    assert main(["detect", str(path), "mug", "--output", str(out)]) == 2

    err = capsys.readouterr().err
    frames = len(list(video_frames(out)))
    assert 10 < frames < 50
    assert f"drawn in {out}: {frames} frames" in err
    assert "photonlite: error: the video" in err
    assert "ends early" in err


def test_an_interrupted_video_can_be_played(
    fake: FakeModel, clip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, out = video._draw, tmp_path / "found.mp4"

    def interrupted(writer: Any, frame: Any, found: Any) -> None:
        draw(writer, frame, found)
        if writer.frames == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(video, "_draw", interrupted)

    assert main(["detect", clip, "mug", "--output", str(out)]) == 130
    assert len(list(video_frames(out))) == 4


def test_frames_of_another_size_fit_into_the_first(fake: FakeModel, tmp_path: Path) -> None:
    folder, out = tmp_path / "frames", tmp_path / "found.mp4"
    folder.mkdir()
    for number, size in enumerate(((64, 48), (48, 64), (640, 480))):
        Image.new("RGB", size, "navy").save(folder / f"{number}.png")

    assert main(["detect", str(folder), "mug", "--output", str(out)]) == 0
    assert [frame.pixels.shape for frame in video_frames(out)] == [(48, 64, 3)] * 3


def test_sound_that_does_not_fit_is_reported(fake: FakeModel, clip: str, tmp_path: Path, capsys: Captured) -> None:
    assert main(["detect", clip, "mug", "--output", str(tmp_path / "found.webm")]) == 0

    assert ".webm cannot hold all of the sound (aac): a name in .mkv" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["detect", "{clip}", "{clip}", "mug"], "2 sources were given"),
        (["detect", "{clip}", "mug", "--plot", "out.png"], "name a video with --output"),
        (["detect", "{clip}", "mug", "--every", "0"], "--every is 0"),
        (["detect", "{clip}", "mug", "--rate", "10"], "a video has its own times"),
        (["detect", "{folder}", "mug", "--rate", "nan"], "--rate is nan"),
        (["detect", "{clip}", "mug", "--output", "{clip}"], "would overwrite the video itself"),
        (["detect", "{clip}", "mug", "--output", "{folder}/out.txt"], "does not end as a video does"),
        (["detect", "{clip}", "mug", "--output", "{clip}/out.mp4"], "cannot be written"),
        (["detect", "{folder}/missing.mp4", "mug"], "there is no source"),
        (["detect", "{folder}/bad.mp4", "mug"], "cannot be read as a video"),
        (["detect", "{folder}/sound.mp4", "mug"], "holds no video"),
        (["detect", "rtsp://camera/1", "mug"], "photonlite realtime --source rtsp://camera/1"),
    ],
)
def test_what_cannot_work_is_reported_before_the_model_is_loaded(
    fake: FakeModel, clip: str, tmp_path: Path, capsys: Captured, arguments: list[str], message: str
) -> None:
    folder = tmp_path / "frames"
    folder.mkdir()
    Image.new("RGB", (64, 48)).save(folder / "a.png")
    (folder / "bad.mp4").write_bytes(b"no video at all")
    make_sound(folder / "sound.mp4")

    assert main([argument.format(clip=clip, folder=folder) for argument in arguments]) == 2

    assert message in capsys.readouterr().err
    assert fake.loaded == []


@pytest.mark.parametrize(("package", "extra", "option"), [("av", "video", "--json"), ("trackers", "track", "--track")])
def test_a_missing_package_is_named_with_its_extra(
    fake: FakeModel,
    clip: str,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    extra: str,
    option: str,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)

    assert main(["detect", clip, "mug", option]) == 2
    assert f"pip install 'photonlite[{extra}]'" in capsys.readouterr().err
    assert fake.loaded == []


def test_frames_in_memory_are_bounded_by_their_size() -> None:
    model = FakeModel()
    small, large = (video.Footage(iter(()), 30, None, size, None) for size in (1000, 200 << 20))

    assert video._window(model, small, every=5) == 20
    assert video._window(model, large, every=5) == 2


def test_a_film_is_not_read_before_it_is_answered(tmp_path: Path) -> None:
    footage = open_footage(dark_clip(tmp_path / "clip.mp4", frames=30), None)

    assert (footage.rate, footage.total, footage.frame_bytes) == (20, 30, 128 * 96 * 3)
    assert next(footage.frames).time_s == 0


@pytest.mark.long
def test_the_command_of_the_readme_draws_the_clip(
    fake: FakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(__file__).resolve().parents[2]
    [command] = re.findall(r"`photonlite (detect\s[^`]* --output found\.mp4)`", (root / "README.md").read_text())
    (tmp_path / "assets").symlink_to(root / "assets")
    monkeypatch.chdir(tmp_path)

    assert main([*shlex.split(command), "--every", "50"]) == 0
    assert len(list(video_frames(tmp_path / "found.mp4"))) == 150
