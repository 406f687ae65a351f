"""Encode steps beside the others: on which stream their work runs, and what waits for it."""

from collections.abc import Sequence as ListLike
from typing import Any

import numpy as np

from photonlite.batch import CropGroup, EncodeJob, ScheduledBatch, Step
from photonlite.images.crops import ImageCrops
from photonlite.observe.trace import Tracer
from photonlite.runner.slots import EncoderSlot
from photonlite.runner.step_executor import StepExecutor
from tests.device.simulated import SimulatedDevice
from tests.runner.test_step_executor import SHAPE


class Encoder:
    """A model runner that encodes: the features of a job are the crops that were uploaded for it."""

    shape = SHAPE
    vocab_size = 40

    def __init__(self) -> None:
        self.uploaded: dict[tuple[bool, int], list[int]] = {}
        self.features: dict[int, int] = {}

    def upload_crops(self, slot: EncoderSlot, groups: ListLike[CropGroup]) -> None:
        self.uploaded[slot.beside, slot.index] = [group.job.number for group in groups]

    def encode(self, slot: EncoderSlot, groups: ListLike[CropGroup]) -> None:
        for group, crops in zip(groups, self.uploaded[slot.beside, slot.index], strict=True):
            self.features[group.job.number] = crops

    def forget(self, job: EncodeJob) -> None:
        self.features.pop(job.number, None)


class Rig:
    """An executor on a device that runs nothing before it is told to."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self.device = SimulatedDevice(0, encodes_beside=True)
        self.device._eagerness = 0.0
        self.runner = Encoder()
        self.executor = StepExecutor(self.device, self.runner, 2, tracer, encodes_beside=True)  # type: ignore[arg-type]

    def launch(self, number: int, *, beside: bool = True) -> tuple[Step, EncodeJob]:
        leader: Any = None
        job = EncodeJob(
            number, str(number), ImageCrops(np.zeros((1, 2, 2, 3), np.uint8), (1, 1)), leader, beside=beside
        )
        step = Step(number, ScheduledBatch("encode", groups=(CropGroup(job, 0, 1),), beside=beside), number % 2)
        self.executor.launch(step)
        return step, job

    def run(self, *streams: Any) -> None:
        while self.device.step(streams):
            pass


def test_an_image_is_encoded_while_the_compute_stream_is_busy() -> None:
    rig = Rig()
    done: list[str] = []
    rig.device.compute.run(lambda: done.append("a decode step"))
    step, _ = rig.launch(0)
    assert not rig.executor.has_ended(step)
    rig.run(rig.device.upload, rig.device.encode)

    assert rig.executor.has_ended(step)
    assert rig.executor.collect(step) == []
    assert rig.runner.features == {0: 0}
    assert step.device_s > 0
    assert not done


def test_an_image_beside_the_steps_of_an_undivided_card_is_traced_in_no_part() -> None:
    tracer = Tracer()
    rig = Rig(tracer)
    step, _ = rig.launch(0)
    rig.device.drain()
    rig.executor.collect(step)

    assert [(span.track, span.args) for span in tracer.spans() if span.name == "encode"] == [("encode", {"step": 0})]


def test_an_image_in_turn_runs_among_the_other_steps_and_waits_for_no_image_beside_them() -> None:
    rig = Rig()
    done: list[str] = []
    rig.launch(1)
    rig.device.compute.run(lambda: done.append(f"before {rig.runner.features}"))
    step, _ = rig.launch(3, beside=False)
    rig.device.compute.run(lambda: done.append(f"behind {rig.runner.features}"))
    rig.run(rig.device.upload, rig.device.compute)
    assert done == ["before {}", "behind {3: 3}"]
    assert rig.executor.collect(step) == []
    rig.device.drain()

    assert rig.runner.features == {3: 3, 1: 1}, "each has buffers of its own"


def test_an_image_in_turn_is_forgotten_behind_the_prompts_that_read_it_while_another_one_is_encoded() -> None:
    rig = Rig()
    seen: list[dict[int, int]] = []
    _, job = rig.launch(2, beside=False)
    rig.launch(1)
    rig.device.compute.run(lambda: seen.append(dict(rig.runner.features)))
    rig.executor.forget(job)
    rig.run(rig.device.upload, rig.device.compute)

    assert seen == [{2: 2}]
    assert not rig.runner.features


def test_two_encode_steps_in_flight_have_buffers_of_their_own() -> None:
    rig = Rig()
    rig.launch(0)
    rig.launch(1)
    rig.run(rig.device.upload)
    rig.run(rig.device.encode)

    assert rig.runner.features == {0: 0, 1: 1}


def test_an_image_that_is_dropped_while_it_is_encoded_leaves_nothing() -> None:
    rig = Rig()
    _, job = rig.launch(0)
    rig.executor.forget(job)
    rig.run(rig.device.compute)
    rig.device.drain()

    assert not rig.runner.features


def test_features_stay_until_the_prompts_that_read_them_have_run() -> None:
    rig = Rig()
    step, job = rig.launch(0)
    rig.executor.collect(step)
    seen: list[dict[int, int]] = []
    rig.device.compute.run(lambda: seen.append(dict(rig.runner.features)))
    rig.executor.forget(job)
    rig.run(rig.device.encode)
    rig.device.drain()

    assert seen == [{0: 0}]
    assert not rig.runner.features


def test_an_error_of_the_device_that_is_asked_for_the_end_comes_out_where_the_step_is_collected() -> None:
    class Lost:
        @property
        def done(self) -> bool:
            raise RuntimeError("an illegal memory access was encountered")

    rig = Rig()
    step, _ = rig.launch(0)
    rig.executor._encoder_slots[0].forward_ended = Lost()  # type: ignore[assignment]

    assert rig.executor.has_ended(step)


def test_a_trace_has_a_track_of_its_own_for_such_steps() -> None:
    tracer = Tracer()
    rig = Rig(tracer)
    step, _ = rig.launch(0)
    rig.executor.collect(step)

    assert [(span.track, span.name) for span in tracer.spans()] == [("encode", "crops"), ("encode", "encode")]
