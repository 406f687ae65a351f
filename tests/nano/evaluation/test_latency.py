import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from bench.nano.evaluation import latency
from bench.nano.scenes.held_out.scene import make_scene
from bench.nano.scenes.objects import load_objects
from photonlite.results import Detections, Metrics


def test_warm_up_calls_are_made_but_not_timed(monkeypatch):
    clock = itertools.count(0.0, 0.5)
    monkeypatch.setattr(latency, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    calls = []
    assert latency.sample_times(lambda: calls.append(1), runs=4, warm_up=3) == [0.5] * 4
    assert len(calls) == 7


def test_spread_is_in_milliseconds():
    figures = latency.spread([0.1 * step for step in range(11)])
    assert figures["median_ms"] == pytest.approx(500)
    assert figures["p90_ms"] == pytest.approx(900)


def test_detect_is_asked_for_what_is_in_the_image_and_split_by_stage():
    sprites = np.full((len(load_objects()), 16, 16, 4), 255, np.uint8)
    sprites[..., 1] = 0
    scene = make_scene(0, load_objects(), sprites, size=(200, 200), count=1)
    encode_times = iter([9.0, 9.0, 9.0, 0.1, 0.3, 0.2])
    asked = []

    class Model:
        def detect(self, image, object):
            asked.append((image, object))
            return Detections([], metrics=Metrics(encode_s=next(encode_times), prompt_tokens=7, output_tokens=3))

    figures = latency.measure_detect(Model(), scene, runs=3)
    name = load_objects()[scene.objects[0].index].name
    assert all(image is scene.image and object == name for image, object in asked)
    assert figures["stages_ms"]["encode"] == pytest.approx(200)
    assert (figures["prompt_tokens"], figures["output_tokens"], figures["objects"]) == (7, 3, 0)
