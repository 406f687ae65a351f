import contextlib
import http.server
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from photonlite.errors import ImageDecodeError, InputError, MissingDependencyError
from photonlite.video import reader
from photonlite.video.reader import camera_frames, is_video_file, stream_frames, video_frames, video_info
from tests.video.clips import RATE, make_clip, make_sound, place_matrix, reds, timed_clip

NUMBERS = list(range(10))


@pytest.mark.parametrize("suffix", ["avi", "mkv", "mov", "mp4"])
def test_a_video_gives_its_frames_in_order_with_their_times(tmp_path: Path, suffix: str) -> None:
    path = make_clip(tmp_path / f"clip.{suffix}", sound="aac")
    frames = list(video_frames(path))
    times = [frame.time_s - frames[0].time_s for frame in frames]

    assert video_info(path).rate == 20
    assert video_info(path).size == (64, 48)
    assert reds(frame.pixels for frame in frames) == NUMBERS
    assert times == pytest.approx([number / 20 for number in NUMBERS], abs=0.001)


def test_pixels_are_rgb(tmp_path: Path) -> None:
    pixels = next(video_frames(make_clip(tmp_path / "clip.mp4"))).pixels

    assert pixels.shape == (48, 64, 3)
    assert pixels[0, 0].tolist() == pytest.approx([0, 0, 255], abs=12)


@pytest.mark.parametrize(("rotation", "corner"), [(90, (0, 0)), (180, (-1, 0)), (-90, (0, -1))])
def test_a_rotated_video_is_read_upright(tmp_path: Path, rotation: int, corner: tuple[int, int]) -> None:
    path = make_clip(tmp_path / "clip.mp4", rotation=rotation)
    pixels = next(video_frames(path)).pixels
    opposite = tuple(-1 - place for place in corner)

    assert video_info(path).size == ((64, 48) if rotation == 180 else (48, 64))
    assert pixels[corner][2] > 200
    assert pixels[opposite][2] < 50


@pytest.mark.parametrize("matrix", [(a, 0, 0, d) for a in (1, -1) for d in (1, -1)])
def test_the_display_matrix_mirrors(tmp_path: Path, matrix: tuple[float, ...]) -> None:
    plain = next(video_frames(make_clip(tmp_path / "clip.mp4", frames=1))).pixels
    path = place_matrix(tmp_path / "clip.mp4", *matrix)

    assert video_info(path).size == (64, 48)
    assert np.array_equal(next(video_frames(path)).pixels, plain[:: int(matrix[3]), :: int(matrix[0])])


@pytest.mark.parametrize("matrix", [(0, b, c, 0) for b in (1, -1) for c in (1, -1)])
def test_the_display_matrix_turns_and_transposes(tmp_path: Path, matrix: tuple[float, ...]) -> None:
    plain = next(video_frames(make_clip(tmp_path / "clip.mp4", frames=1, aspect=Fraction(16, 11)))).pixels
    path = place_matrix(tmp_path / "clip.mp4", *matrix)
    mirrored = plain[:: int(matrix[2]), :: int(matrix[1])]  # before rows and columns are swapped

    assert (video_info(path).size, video_info(path).pixel_aspect) == ((48, 64), Fraction(11, 16))
    assert np.array_equal(next(video_frames(path)).pixels, mirrored.transpose(1, 0, 2))


@pytest.mark.parametrize(("degrees", "shape"), [(10, (48, 64, 3)), (80, (64, 48, 3)), (170, (48, 64, 3))])
def test_other_angles_are_rounded_to_a_quarter_turn(tmp_path: Path, degrees: int, shape: tuple[int, ...]) -> None:
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    path = place_matrix(make_clip(tmp_path / "clip.mp4", frames=1), cos, sin, -sin, cos)

    assert next(video_frames(path)).pixels.shape == shape


def test_side_data_that_pyav_does_not_know_leaves_the_rotation() -> None:
    class Frame:
        rotation = -90

        @property
        def side_data(self) -> Any:
            raise ValueError("28 is not a valid Type")

        def to_ndarray(self, format: str) -> Any:
            return np.arange(24, dtype=np.uint8).reshape(2, 4, 3)

    assert np.array_equal(reader._upright(Frame()), np.rot90(Frame().to_ndarray("rgb24"), -1))


@pytest.mark.parametrize(
    "times_ms",
    [
        [0, 33.333, 66.666, 66.700, 100, 133.333],  # 66.7 is the same millisecond
        [0, 10, 10.1, 10.2, 10.3, 10.4, 11, 11.2, 40],
        [0, 0.1, 0.2, 0.3],
    ],
)
def test_times_strictly_increase_where_the_file_gives_two_frames_one_time(
    tmp_path: Path, times_ms: list[float]
) -> None:
    times = [frame.time_s for frame in video_frames(timed_clip(tmp_path / "clip.mkv", times_ms))]

    assert len(times) == len(times_ms)
    assert all(after > before for before, after in pairwise(times))
    assert times == pytest.approx([time_ms / 1000 for time_ms in times_ms], abs=0.005)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([None, None, None], [0, 0.05, 0.1]),
        ([0.0, math.nan, 0.1, math.inf], [0, 0.05, 0.1, 0.15]),
        ([-0.03, -0.01, 0.05], [0, 0.001, 0.05]),
        ([0.0, 0.05, 0.04, 0.1], [0, 0.05, 0.051, 0.1]),
        ([5.0, 5.05, 0.0, 0.05], [5, 5.05, 5.1, 5.15]),
    ],
)
def test_missing_and_backward_times_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[float | None], expected: list[float]
) -> None:
    class Timed:
        duration = time_base = None

        def __init__(self, time: float | None) -> None:
            self.time = time

    path = make_clip(tmp_path / "clip.mp4")
    monkeypatch.setattr(reader, "_decoded", lambda container, stream: map(Timed, given))
    monkeypatch.setattr(reader, "_upright", lambda frame: frame)
    monkeypatch.setattr(reader, "_duration", lambda container, stream: None)

    assert [frame.time_s for frame in video_frames(path)] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("clip.ts", "libx264"),
        ("clip.MTS", "libx264"),
        ("clip.m2ts", "libx264"),
        ("clip.wmv", "wmv2"),
        ("clip.asf", "wmv2"),
        ("clip.flv", "flv1"),
        ("clip.3gp", "libx264"),
        ("clip.h264", "libx264"),
        ("clip.mpg", "mpeg2video"),
        ("clip.mjpeg", "mjpeg"),
        ("clip.ogv", "libvpx"),
    ],
)
def test_videos_are_known_by_their_suffix_and_read(tmp_path: Path, name: str, codec: str) -> None:
    container = {".ogv": "ogg", ".m2ts": "mpegts", ".MTS": "mpegts"}.get(Path(name).suffix)
    with av.open(str(tmp_path / name), "w", format=container) as out:
        stream: Any = out.add_stream({"flv1": "flv"}.get(codec, codec), rate=25)
        stream.width, stream.height = 64, 48
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for number in range(5):
            frame = av.VideoFrame(64, 48, stream.pix_fmt)
            frame.pts = number
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))

    assert is_video_file(tmp_path / name)
    assert video_info(tmp_path / name).size == (64, 48)
    times = [frame.time_s for frame in video_frames(tmp_path / name)]
    assert len(times) == 5
    assert all(after > before for before, after in pairwise(times))


@pytest.mark.parametrize("suffix", ["avi", "mkv", "mov", "mp4", "webm"])
def test_videos_of_other_names_are_known_by_their_first_bytes(tmp_path: Path, suffix: str) -> None:
    path = make_clip(tmp_path / f"clip.{suffix}", codec="libvpx" if suffix == "webm" else "libx264")

    assert is_video_file(path.rename(tmp_path / "clip.part"))
    assert is_video_file((tmp_path / "clip.part").rename(tmp_path / "clip.gif"))


def test_images_folders_and_texts_are_no_videos(tmp_path: Path) -> None:
    (tmp_path / "folder.mp4").mkdir()
    (tmp_path / "x.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    (tmp_path / "notes.txt").write_text("notes")
    for kind in ("avif", "gif", "jpeg", "webp"):
        Image.new("RGB", (8, 8)).save(tmp_path / f"a.{kind}")

    assert not [path.name for path in tmp_path.iterdir() if is_video_file(path)]
    assert not is_video_file(str(tmp_path / "missing\0"))
    assert is_video_file("missing.mp4")


@pytest.mark.parametrize("size", [(63, 47), (1, 1), (33, 2)])
def test_odd_sides_are_read_whole(tmp_path: Path, size: tuple[int, int]) -> None:
    with av.open(str(tmp_path / "clip.mkv"), "w") as out:
        stream: Any = out.add_stream("ffv1", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv444p"
        out.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((*size[::-1], 3), 200, np.uint8), format="rgb24")))
        out.mux(stream.encode(None))

    [frame] = video_frames(tmp_path / "clip.mkv")
    assert frame.pixels.shape == (*size[::-1], 3)
    assert frame.pixels.min() > 190


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have names in Unicode only")
def test_a_name_that_is_not_in_unicode_is_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.mp4")
    make_clip(tmp_path / "clip.mp4").rename(path)

    assert len(list(video_frames(path))) == 10


def test_a_name_with_a_colon_is_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_clip(tmp_path / "clip.mp4").rename(tmp_path / "http:12.30.mp4")
    monkeypatch.chdir(tmp_path)

    assert len(list(video_frames(Path("http:12.30.mp4")))) == 10


@pytest.mark.parametrize("cut", ["mkv", "mp4"])
def test_a_video_that_was_cut_off_gives_what_there_is_and_says_so(tmp_path: Path, cut: str) -> None:
    options = {"movflags": "faststart"} if cut == "mp4" else {}
    path = make_clip(tmp_path / f"clip.{cut}", frames=60, **options)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 6 // 10])
    seen = []

    with pytest.raises(ImageDecodeError, match=r"ends early: \d\.\d of 3\.0 seconds"):
        seen.extend(video_frames(path))
    assert 10 < len(seen) < 50


def test_a_last_frame_that_stands_for_long_is_no_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "screen.mp4"
    with av.open(str(path), "w") as out:
        stream: Any = out.add_stream("libx264", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.max_b_frames = 0
        packets = []
        for number in range(10):
            frame = av.VideoFrame(64, 48, "yuv420p")
            frame.pts = number
            packets += stream.encode(frame)
        packets += stream.encode(None)
        packets[-1].duration = 5 * RATE
        out.mux(packets)
    duration = video_info(path).duration_s

    assert duration is not None
    assert duration > 5
    assert len(list(video_frames(path))) == 10


def test_times_go_on_where_the_clock_of_a_joined_video_starts_again(tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "clip.ts", frames=20).read_bytes()
    path = tmp_path / "joined.mpg"
    path.write_bytes(clip + clip)
    frames = list(video_frames(path))

    assert len(frames) > 30
    assert all(0 < after.time_s - before.time_s < 0.2 for before, after in pairwise(frames))


def test_a_title_that_is_not_in_unicode_is_no_reason_to_refuse_a_video(tmp_path: Path) -> None:
    path = tmp_path / "clip.avi"
    with av.open(str(path), "w") as out:
        out.metadata["title"] = "XXXX"
        stream: Any = out.add_stream("mpeg4", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        out.mux(stream.encode(av.VideoFrame(64, 48, "yuv420p")))
        out.mux(stream.encode(None))
    path.write_bytes(path.read_bytes().replace(b"XXXX", b"Caf\xe9"))

    assert video_info(path).size == (64, 48)
    assert len(list(video_frames(path))) == 1


def test_a_format_without_a_decoder_is_named_as_the_cause(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "clip.mp4")
    path.write_bytes(path.read_bytes().replace(b"avc1", b"vvcX"))

    with pytest.raises(ImageDecodeError, match=r"no decoder: convert it to MP4 with H\.264"):
        video_info(path)


class Packet:
    def __init__(self, outcome: Any) -> None:
        self._outcome = outcome

    def decode(self) -> Any:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


class Broken:
    """A container whose packets decode to what is given; exceptions break off the reading itself."""

    def __init__(self, *packets: Any) -> None:
        self._packets = packets

    def demux(self, stream: Any) -> Iterator[Packet]:
        for packet in self._packets:
            if isinstance(packet, Exception):
                raise packet
            yield packet


@pytest.mark.parametrize("break_off", [av.error.PatchWelcomeError(1, "later"), IndexError("list index out of range")])
def test_errors_of_a_damaged_file_end_it_and_errors_of_a_packet_skip_it(break_off: Exception) -> None:
    broken = Broken(Packet([1]), Packet(av.error.PatchWelcomeError(1, "later")), Packet([2]), break_off, Packet([3]))

    assert list(reader._decoded(broken, None)) == [1, 2]


def test_a_camera_that_is_pulled_out_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def unplugged(container: Any) -> Iterator[Any]:
        yield "seen"
        raise av.error.OSError(19, "No such device")

    FakeAv(monkeypatch, contextlib.nullcontext)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(reader, "_live_frames", unplugged)
    frames = camera_frames(0)

    assert next(frames) == "seen"
    with pytest.raises(InputError, match="camera 0 was lost: No such device"):
        next(frames)


@pytest.mark.parametrize(
    ("rotation", "upright"), [(0, Fraction(16, 11)), (90, Fraction(11, 16)), (180, Fraction(16, 11))]
)
def test_the_aspect_of_pixels_turns_with_the_picture(tmp_path: Path, rotation: int, upright: Fraction) -> None:
    path = make_clip(tmp_path / "clip.mp4", rotation=rotation, aspect=Fraction(16, 11))

    assert video_info(path).pixel_aspect == upright


def test_damaged_packets_are_skipped(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "clip.mp4", frames=20)
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        place = [packet.pos for packet in container.demux() if packet.pos is not None][12]
    data[place : place + 4] = b"\xff\xff\xff\xff"  # the size of the slice
    path.write_bytes(data)

    numbers = reds(frame.pixels for frame in video_frames(path))
    assert numbers[:10] == list(range(10))
    assert numbers[-4:] == [16, 17, 18, 19]
    assert len(numbers) < 20


def test_what_is_no_video_is_refused(tmp_path: Path) -> None:
    text, empty = tmp_path / "text.mp4", tmp_path / "empty.mp4"
    text.write_bytes(b"no video at all")
    empty.touch()
    blank = make_clip(tmp_path / "blank.mkv", frames=1)
    blank.write_bytes(blank.read_bytes()[:700])

    for path, message in (
        (text, "cannot be read as a video"),
        (empty, "cannot be read as a video"),
        (blank, "no frame|cannot be read as a video"),
        (make_sound(tmp_path / "sound.mp4"), "holds no video, only audio"),
    ):
        with pytest.raises(ImageDecodeError, match=message):
            video_info(path)


def test_without_pyav_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)

    for read in (lambda: video_info(tmp_path / "clip.mp4"), lambda: next(camera_frames(0))):
        with pytest.raises(MissingDependencyError, match=r"pip install 'photonlite\[video\]'"):
            read()


class FakeAv:
    """Stands for `av` where a camera or a stream is opened: `openings` are called one after the other."""

    FFmpegError, InvalidDataError = av.FFmpegError, av.InvalidDataError
    DecoderNotFoundError = av.DecoderNotFoundError

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *openings: Callable[[], Any]) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._openings = list(openings)
        monkeypatch.setattr(reader, "pyav", lambda: self)

    def open(self, place: str, **options: Any) -> Any:
        self.asked.append((place, options))
        return self._openings.pop(0)() if self._openings else refused()


def refused() -> Any:
    raise av.error.ConnectionRefusedError(111, "Connection refused")


def test_a_camera_is_read_until_it_has_no_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_clip(tmp_path / "clip.mkv", frames=3)
    fake = FakeAv(monkeypatch, lambda: av.open(str(path)))
    monkeypatch.setattr(sys, "platform", "linux")

    assert reds(camera_frames(2)) == [0, 1, 2]
    assert fake.asked == [("/dev/video2", {"format": "v4l2", "options": {}, "metadata_errors": "replace"})]
    with pytest.raises(InputError, match="camera 7 cannot be opened"):
        next(camera_frames(7))


def test_cameras_have_no_numbers_on_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")

    with pytest.raises(InputError, match="give the address of a stream"):
        next(camera_frames(0))


def test_a_lost_stream_is_connected_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, waits = make_clip(tmp_path / "clip.mkv", frames=3), list[float]()
    fake = FakeAv(monkeypatch, lambda: av.open(str(path)), refused, refused, lambda: av.open(str(path)))
    frames = stream_frames("rtsp://me:secret@camera/1", waits.append)

    assert reds(next(frames) for _ in range(6)) == [0, 1, 2, 0, 1, 2]
    assert waits == [reader.PAUSE_S] * 3
    assert {place for place, _ in fake.asked} == {"rtsp://me:secret@camera/1"}
    with pytest.raises(InputError, match=r"'rtsp://camera/1' was lost, and 30 attempts .*: Connection refused"):
        next(frames)
    assert len(waits) == 3 + reader.RECONNECTS


def test_a_stream_that_cannot_be_opened_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeAv(monkeypatch)

    with pytest.raises(InputError, match=r"the stream 'rtsp://camera/1' cannot be opened: Connection refused"):
        next(stream_frames("rtsp://camera/1", lambda seconds: pytest.fail("waited")))


def test_waiting_for_a_lost_stream_can_be_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_clip(tmp_path / "clip.mkv", frames=3)
    FakeAv(monkeypatch, lambda: av.open(str(path)))

    assert reds(stream_frames("rtsp://camera/1", lambda seconds: True)) == [0, 1, 2]


class Server(http.server.ThreadingHTTPServer):
    """Sends `bodies`, one an answer, and says that each has as many bytes as the last."""

    bodies: tuple[bytes, ...] = (b"",)

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/live.ts"
        self.requests = 0


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        body = self.server.bodies[min(self.server.requests, len(self.server.bodies) - 1)]
        self.server.requests += 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.bodies[-1])))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_connection_that_breaks_off_is_made_again(tmp_path: Path, server: Server) -> None:
    body = make_clip(tmp_path / "clip.ts", frames=20).read_bytes()
    server.bodies = body[: len(body) // 2], body
    waits: list[float] = []
    frames = reds(stream_frames(server.url, waits.append))

    assert frames[-20:] == list(range(20))  # the whole stream, at last
    assert len(frames) > 20  # after a part of it
    assert waits == [reader.PAUSE_S]
    assert server.requests == 2
