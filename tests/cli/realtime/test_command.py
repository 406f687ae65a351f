import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from photonlite.cli import main
from photonlite.cli.realtime import command
from photonlite.errors import ImageError
from photonlite.results import Detections
from tests.realtime.fake import FakeModel

BOX = {"x_min": 0.25, "y_min": 0.25, "x_max": 0.75, "y_max": 0.75, "label": "mug", "score": 0.5}


def find(image: Any) -> Detections:
    return Detections([dict(BOX)], picture_size=image.size)


def fail(image: Any) -> Detections:
    raise ImageError("broken")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeModel]:
    """Replaces the model that is loaded."""

    def put(replies: Callable[[Any], Any] = find) -> FakeModel:
        model = FakeModel(replies)
        monkeypatch.setattr("photonlite.api.load", lambda *_, **__: model)
        return model

    return put


@pytest.fixture
def clip(tmp_path: Path) -> str:
    first, *others = (Image.new("RGB", (64, 48), color) for color in ("red", "lime", "blue"))
    path = tmp_path / "clip.gif"
    first.save(path, save_all=True, append_images=others, duration=20)
    return str(path)


def run(clip: str, *arguments: str) -> int:
    return main(["realtime", "--source", clip, "--object", "mug", *arguments])


def test_json_prints_every_result_and_then_the_statistics(
    loaded: Callable[..., FakeModel], clip: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = loaded()

    assert run(clip, "--json", "--max-objects", "3") == 0

    *results, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert results[-1]["frame"] == 2
    assert results[-1]["objects"] == [BOX]
    assert results[-1]["met_deadline"]
    assert last["stats"]["submitted"] == 3
    assert last["stats"]["answered"] == len(results)
    assert model.next().arguments["settings"] == {"max_objects": 3}
    assert model.closed


def test_several_objects_and_a_threshold_reach_the_model(loaded: Callable[..., FakeModel], clip: str) -> None:
    model = loaded()

    assert run(clip, "--object", "key", "--min-score", "0.25", "--overlap", "best", "--json") == 0

    arguments = model.next().arguments
    assert arguments["object"] == ["mug", "key"]
    assert (arguments["min_score"], arguments["overlap"]) == (0.25, "best")


def test_without_a_terminal_statistics_are_printed_to_stderr(
    loaded: Callable[..., FakeModel], clip: str, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded()

    assert run(clip) == 0

    printed = capsys.readouterr()
    assert printed.out == ""
    assert "of 3 frames answered" in printed.err.splitlines()[-1]


def test_failures_are_printed_and_a_run_without_a_result_exits_with_2(
    loaded: Callable[..., FakeModel], clip: str, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded(fail)

    assert run(clip, "--json") == 2

    printed = capsys.readouterr()
    *failures, _ = map(json.loads, printed.out.splitlines())
    # A busy machine may supersede the frames before the last one.
    assert failures[-1] == {"frame": 2, "error": {"type": "ImageError", "message": "broken"}}
    assert "none of 3 frames was answered (ImageError)" in printed.err


def test_a_duration_repeats_the_source(
    loaded: Callable[..., FakeModel], clip: str, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded()

    assert run(clip, "--json", "--duration", "1", "--rate", "200") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["stats"]["submitted"] > 3


def test_ctrl_c_ends_the_run_and_prints_the_statistics(
    loaded: Callable[..., FakeModel], clip: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Any, stats: Any) -> None:
        if stats.answered:
            raise KeyboardInterrupt

    loaded()
    monkeypatch.setattr(command.JsonLines, "update", interrupted)

    assert run(clip, "--json", "--duration", "60") == 0
    assert "stats" in json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--object", "mug"], "--source"),
        (["--source", "nowhere", "--object", "mug"], "there is no source 'nowhere'"),
        (["--source", "CLIP"], "the object is missing: give --object"),
        (["--source", "CLIP", "--task", "query"], "the question is missing: give --question"),
        (["--source", "CLIP", "--object", "mug", "--length", "short"], "detect takes no 'length'"),
        (["--source", "CLIP", "--object", "mug", "--deadline-ms", "0"], "deadline_ms"),
        (["--source", "CLIP", "--object", "mug", "--json", "--plain"], "give one of them"),
        (["--source", "CLIP", "--object", "mug", "--output", "x.txt"], "'.txt' is not an animation"),
    ],
)
def test_bad_arguments_are_reported_before_the_model_is_loaded(
    arguments: list[str], message: str, clip: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["realtime", *(clip if argument == "CLIP" else argument for argument in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_a_rate_of_0_is_refused(
    loaded: Callable[..., FakeModel], clip: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = loaded()

    assert run(clip, "--rate", "0") == 2
    assert "rate is 0" in capsys.readouterr().err
    assert model.closed


def test_without_rich_the_error_says_what_to_install(
    loaded: Callable[..., FakeModel],
    clip: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for name in [name for name in sys.modules if name.startswith("photonlite.cli.realtime.")]:
        if name.endswith(("view", "canvas")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich.console", None)

    assert run(clip) == 2
    assert "pip install 'photonlite[realtime]'" in capsys.readouterr().err
