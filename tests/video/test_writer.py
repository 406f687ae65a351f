import contextlib
import subprocess
import sys
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import av
import pytest
from PIL import Image

from photonlite.errors import InputError, MissingDependencyError
from photonlite.video.reader import video_frames, video_info
from photonlite.video.writer import CODECS, VideoWriter
from tests.video.clips import LEVELS, make_clip, reds

WRITE_WITHOUT_ROOM = """
import resource, sys
from pathlib import Path
from PIL import Image
from photonlite.errors import InputError
from photonlite.video.writer import VideoWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    with VideoWriter(Path(sys.argv[1]), 20) as writer:
        for number in range(200):
            writer.add(Image.effect_noise((64, 48), 99).convert("RGB"), number / 20)
except InputError as error:
    print(str(error).rpartition(": ")[2])
"""


def image(number: int, size: tuple[int, int] = (64, 48)) -> Image.Image:
    return Image.new("RGB", size, (number * LEVELS, 0, 0))


def write(path: Path, *images: Image.Image, rate: float = 20, **more: Any) -> VideoWriter:
    with VideoWriter(path, rate, **more) as writer:
        for number, drawn in enumerate(images):
            writer.add(drawn, number / rate)
    return writer


@pytest.mark.parametrize("suffix", CODECS)
def test_what_is_written_is_read_again(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "new" / f"out{suffix}"
    write(path, *map(image, range(10)))

    assert video_info(path).rate == pytest.approx(20)
    assert reds(frame.pixels for frame in video_frames(path)) == pytest.approx(range(10), abs=1)


def test_frames_keep_their_own_times(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    with VideoWriter(path, 30) as writer:
        for time_s in (0, 0.5, 0.52, 0.52, 2):
            writer.add(image(0), time_s)

    times = [frame.time_s for frame in video_frames(path)]
    assert times == pytest.approx([0, 0.5, 0.52, 0.52, 2], abs=0.001)
    assert sorted(set(times)) == times


def test_an_image_of_another_size_is_fitted_into_the_first(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    write(path, image(9), image(9, (96, 48)), image(9, (65, 49)))
    first, wide, near = (frame.pixels for frame in video_frames(path))

    assert first.shape == wide.shape == near.shape == (48, 64, 3)
    assert int(wide[0, 32, 0]) < 16 < int(wide[24, 32, 0])  # black bars above and below
    assert int(near[0, 0, 0]) > 30


def test_odd_sides_lose_a_row(tmp_path: Path) -> None:
    write(tmp_path / "out.mp4", image(1, (63, 47)))

    assert video_info(tmp_path / "out.mp4").size == (62, 46)


def sound_of(path: Path) -> tuple[str, float, float]:
    """Return codec, beginning and end of a file's sound in seconds."""
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        packets = [packet for packet in container.demux(stream) if packet.pts is not None]
        first, last = packets[0], packets[-1]
        assert first.pts is not None
        assert last.pts is not None
        return (
            stream.codec_context.name,
            float(first.pts * first.time_base),
            float((last.pts + (last.duration or 0)) * last.time_base),
        )


def test_sound_is_copied_as_it_is(tmp_path: Path) -> None:
    source = make_clip(tmp_path / "clip.mp4", frames=40, sound="aac")
    write(tmp_path / "out.mp4", *map(image, range(40)), sound_of=source)

    assert sound_of(tmp_path / "out.mp4") == pytest.approx(sound_of(source), abs=0.001)


def test_sound_ends_with_a_video_that_is_given_up(tmp_path: Path) -> None:
    source = make_clip(tmp_path / "clip.mp4", frames=40, sound="aac")
    with contextlib.suppress(KeyboardInterrupt), VideoWriter(tmp_path / "out.mp4", 20, sound_of=source) as writer:
        for number in range(10):
            writer.add(image(number), number / 20)
        raise KeyboardInterrupt

    assert reds(frame.pixels for frame in video_frames(tmp_path / "out.mp4")) == list(range(10))
    assert sound_of(tmp_path / "out.mp4")[2] == pytest.approx(0.45, abs=0.05)


def test_sound_that_the_file_cannot_hold_is_left_out_and_named(tmp_path: Path) -> None:
    source = make_clip(tmp_path / "clip.mkv", sound="aac")
    writer = write(tmp_path / "out.webm", image(1), sound_of=source)

    assert writer.silenced == ["aac"]
    assert video_info(tmp_path / "out.webm").size == (64, 48)


@pytest.mark.parametrize(
    ("sound", "source", "suffix", "held"),  # in stereo, of which not every file keeps which side is which
    [
        ("pcm_s16le", "avi", ".mp4", False),
        ("pcm_s16le", "mkv", ".mp4", False),
        ("pcm_s16le", "mkv", ".mov", True),
        ("pcm_u8", "avi", ".mp4", False),
        ("flac", "mkv", ".mov", False),
        ("flac", "mkv", ".mp4", True),
        ("flac", "mkv", ".webm", False),
        ("aac", "ts", ".avi", False),
        ("aac", "ts", ".mp4", True),
        ("adpcm_ms", "avi", ".mkv", False),
    ],
)
def test_whether_a_file_holds_a_sound_is_found_out_by_trial(
    tmp_path: Path, sound: str, source: str, suffix: str, held: bool
) -> None:
    path = tmp_path / f"out{suffix}"
    clip = make_clip(tmp_path / f"clip.{source}", sound=sound, layout="stereo")
    writer = write(path, *map(image, range(10)), sound_of=clip)

    assert len(list(video_frames(path))) == 10
    with av.open(str(path)) as container:
        assert [writer.silenced, len(container.streams.audio)] == ([[], 1] if held else [[sound], 0])


def test_sound_of_joined_files_goes_on(tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "clip.ts", frames=20, sound="aac").read_bytes()
    source = tmp_path / "joined.mpg"
    source.write_bytes(clip + clip)
    writer = write(tmp_path / "out.mp4", *map(image, range(40)), sound_of=source)

    assert writer.silenced == []
    assert sound_of(tmp_path / "out.mp4")[2] == pytest.approx(2, abs=0.15)


@pytest.mark.parametrize("error", [av.error.PatchWelcomeError(1, "later"), IndexError("list index out of range")])
def test_damaged_sound_ends_and_is_named(tmp_path: Path, error: Exception) -> None:
    def damaged(packets: Any) -> Any:
        yield from islice(packets, 5)
        raise error

    source = make_clip(tmp_path / "clip.mp4", frames=40, sound="aac")
    with VideoWriter(tmp_path / "out.mp4", 20, sound_of=source) as writer:
        writer.add(image(0), 0)
        assert writer._sound is not None
        writer._sound._packets = damaged(writer._sound._packets)
        for number in range(1, 40):
            writer.add(image(number), number / 20)

    assert writer.silenced == ["aac"]
    assert len(list(video_frames(tmp_path / "out.mp4"))) == 40
    assert 0 < sound_of(tmp_path / "out.mp4")[2] < 1


@pytest.mark.parametrize("rate", [27.123456, 29.97, 30_000 / 1001, 0.5])
def test_avi_takes_any_rate(tmp_path: Path, rate: float) -> None:
    write(tmp_path / "out.avi", *map(image, range(10)), rate=rate)

    assert video_info(tmp_path / "out.avi").rate == pytest.approx(rate, rel=1e-4)
    assert len(list(video_frames(tmp_path / "out.avi"))) == 10


@pytest.mark.parametrize("suffix", sorted(CODECS.keys() - {".webm"}))
def test_pixels_keep_their_aspect(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"out{suffix}", image(1), pixel_aspect=Fraction(16, 11))

    assert float(video_info(tmp_path / f"out{suffix}").pixel_aspect) == pytest.approx(16 / 11, rel=0.01)


def test_webm_has_square_pixels_and_images_of_the_right_shape(tmp_path: Path) -> None:
    write(tmp_path / "out.webm", image(1), image(2), pixel_aspect=Fraction(3, 2))

    info = video_info(tmp_path / "out.webm")
    assert (info.pixel_aspect, info.size) == (1, (image(1).width * 3 // 2, image(1).height))


def test_a_video_without_sound_stays_without(tmp_path: Path) -> None:
    writer = write(tmp_path / "out.mp4", image(1), sound_of=make_clip(tmp_path / "clip.mp4"))

    assert writer.silenced == []


def test_without_a_frame_there_is_no_new_file_and_an_old_one_stays(tmp_path: Path) -> None:
    old = make_clip(tmp_path / "old.mp4")
    before = old.read_bytes()
    write(tmp_path / "new.mp4")
    write(old)

    assert not (tmp_path / "new.mp4").exists()
    assert old.read_bytes() == before


def test_a_file_that_cannot_be_written_is_refused_at_the_call(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.mp4").mkdir()

    for path in (tmp_path / "file" / "out.mp4", tmp_path / "folder.mp4"):
        with pytest.raises(InputError, match="cannot be written"):
            VideoWriter(path, 20)
    with pytest.raises(InputError, match=r"end it in \.avi, .*\.webm"):
        VideoWriter(tmp_path / "out.txt", 20)


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files as POSIX does")
def test_a_disk_that_is_full_from_the_start_is_an_error(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", WRITE_WITHOUT_ROOM, str(tmp_path / "out.mp4")]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False)  # FFmpeg may crash

    assert (ended.returncode, ended.stdout) == (0, "File too large\n")


def test_an_error_of_the_encoder_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> Any:
        raise av.error.MemoryError(28, "No space left on device")

    with VideoWriter(tmp_path / "out.mp4", 20) as writer:
        writer.add(image(1), 0)
        monkeypatch.setattr(av.VideoFrame, "from_ndarray", full)
        with pytest.raises(InputError, match=r"'.*out\.mp4' cannot be written: No space left"):
            writer.add(image(2), 0.05)

    assert len(list(video_frames(tmp_path / "out.mp4"))) == 1


def test_without_x264_another_encoder_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(av, "codecs_available", set(av.codecs_available) - {"libx264"})
    write(tmp_path / "out.mp4", *map(image, range(10)))

    assert reds(frame.pixels for frame in video_frames(tmp_path / "out.mp4")) == pytest.approx(range(10), abs=1)
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert container.streams.video[0].codec_context.name == "mpeg4"


def test_without_pyav_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)

    with pytest.raises(MissingDependencyError, match=r"photonlite\[video\]"):
        VideoWriter(tmp_path / "out.mp4", 20)
