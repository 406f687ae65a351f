import json
from pathlib import Path

import pytest
from PIL import Image

from photonlite.observe import Recording, Tracer


def test_a_recording_holds_what_happened_in_its_block() -> None:
    tracer = Tracer(enabled=True)
    with tracer.host("before"):
        pass
    with Recording(tracer) as recording, tracer.host("inside", step=3):
        assert recording.spans == []
    with tracer.host("after"):
        pass

    assert [(span.name, span.args) for span in recording.spans] == [("inside", {"step": 3})]


@pytest.mark.parametrize("was_on", [True, False])
def test_a_recording_leaves_the_tracer_as_it_was(was_on: bool) -> None:
    tracer = Tracer(enabled=was_on)
    recording = Recording(tracer)

    def fail() -> None:
        with recording, tracer.host("inside"):
            raise KeyError

    with pytest.raises(KeyError):
        fail()

    assert tracer.enabled == was_on
    assert [span.name for span in recording.spans] == ["inside"]


def test_a_recording_is_saved_and_drawn(tmp_path: Path) -> None:
    tracer = Tracer()
    with Recording(tracer) as recording:
        for step in range(3):
            with tracer.host("plan", step=step):
                pass
    recording.save(tmp_path / "run.json")
    image = recording.draw(tmp_path / "run.png", title="three plans")

    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert [event["args"]["step"] for event in events if event["ph"] == "X"] == [0, 1, 2]
    with Image.open(tmp_path / "run.png") as drawn:
        assert drawn.size == image.size


def test_a_recording_of_nothing_is_saved_and_drawn_too(tmp_path: Path) -> None:
    with Recording(Tracer()) as recording:
        pass
    recording.save(tmp_path / "run.json")

    assert recording.draw().width == 1600


def test_recordings_may_overlap_and_the_last_one_switches_the_tracer_off() -> None:
    tracer = Tracer(enabled=False)
    first, second = Recording(tracer), Recording(tracer)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with tracer.host("after the first"):
        pass
    second.__exit__(None, None, None)

    assert [span.name for span in second.spans] == ["after the first"]
    assert not tracer.enabled
