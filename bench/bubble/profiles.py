"""Where the time goes: kernels of one decode step, and functions of the engine thread."""

import cProfile
import os
import pstats
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bench.bubble.report import table
from bench.bubble.rounds import Rig
from bench.bubble.subjects import Subject, Workload, requests
from photonlite.device.base import Device
from photonlite.device.names import open_device
from photonlite.grammar.automata.tables import words
from photonlite.grammar.decoding.grammars import MaskCache
from photonlite.request import Allowed
from photonlite.runner.graphs import GraphOptions
from photonlite.runner.sampling_params import Variant, write_params
from photonlite.runner.slots import PAGES, PENDING_ROW, POSITION, WRITE_SLOT, Slot, SlotShape
from photonlite.runner.torch_model_runner import FusedParts, RunnerLimits, TorchModelRunner

TOP = 15
_PAGE = 16
_REPLAYS = 5
_TIMED = 50


class StepProfile:
    """One decode step at a fixed position, forward and finalize, as graphs where there is a card.

    Args:
        subject: Whose model runs it.
        streams: Rows.
    """

    def __init__(self, subject: Subject, streams: int) -> None:
        self._cuda = subject.device.type == "cuda"
        self._streams = streams
        shape = subject.model.shape
        pages = -(-shape.max_context // _PAGE)
        slots = SlotShape(streams, shape.max_context, _PAGE, pages, words(shape.vocab_size), streams + 1)
        used = subject.stop // _PAGE + 1
        self._runner = TorchModelRunner(
            subject.model,
            subject.device,
            subject.dtype,
            RunnerLimits(slots, streams * used + 1, depth=1, max_crops=1),
            fused=FusedParts(steps=subject.model.step_decoder()),  # as in the engine, not the reference operations
        )
        if self._cuda:
            self._runner.capture(GraphOptions((streams,)))
        self._device: Device = open_device(subject.device)
        self._slot = Slot(0, self._device, slots)
        self._fill(
            (subject.prompt + subject.stop) // 2,
            used,
            shape.vocab_size,
            subject.vocabulary.end,
            subject.vocabulary.coordinate,
        )

    def forward(self) -> str:
        """Profile the forward pass."""
        return self._profile(lambda: self._runner.decode(self._slot, self._streams))

    def finalize(self, variant: Variant) -> str:
        """Profile a finalize."""
        return self._profile(lambda: self._runner.finalize(self._slot, self._streams, variant, sampled=False))

    def close(self) -> None:
        """Free the memory."""
        self._device.close()
        self._runner.close()

    def _fill(self, position: int, used: int, vocab_size: int, end: int, coordinate: int) -> None:
        """Fill every row with its own sequence and the sampling params of the first coordinate of a box."""
        rows, slot = self._streams, self._slot
        allowed = Allowed((coordinate, end), coordinate=coordinate, end=end)
        masks = MaskCache(vocab_size)
        for row in range(rows):
            first = 1 + row * used
            slot.rows[row, PENDING_ROW], slot.rows[row, POSITION] = row, position
            slot.rows[row, PAGES : PAGES + used] = range(first, first + used)
            slot.rows[row, WRITE_SLOT] = (first + position // _PAGE) * _PAGE + position % _PAGE
            write_params(slot.choices[row], slot.masks[row], masks, allowed, 0.0, 1.0, 0, 0)
        with torch.inference_mode():
            self._runner.upload_rows(slot, rows)
            self._runner.upload_choices(slot, rows, "mixed")
            self._runner.decode(slot, rows)
        self._synchronize()

    def _profile(self, work: Callable[[], None]) -> str:
        with torch.inference_mode():
            work()
            self._synchronize()
            activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * self._cuda]
            with profile(activities=activities, acc_events=True) as recorded:
                for _ in range(_REPLAYS):
                    work()
                self._synchronize()
            elapsed = self._elapsed_us(work)
        return self._table(recorded.key_averages()) + elapsed

    def _elapsed_us(self, work: Callable[[], None]) -> str:
        """Report the time of the work on a card without the profiler, to compare with that of a step."""
        if not self._cuda:
            return ""
        times = []
        for _ in range(_TIMED):
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begun.record()
            work()
            ended.record()
            ended.synchronize()
            times.append(1e3 * begun.elapsed_time(ended))
        return (
            f"\n\nWithout the profiler: {statistics.median(times):.0f} us from the first kernel to the last, "
            "less than the sum where kernels overlap."
        )

    def _table(self, events: Sequence[Any]) -> str:
        """Write the kernels that took most time; on a CPU the operations, as shares."""
        spent = [(self._microseconds(event), event.count, event.key) for event in events]
        spent = sorted((entry for entry in spent if entry[0] > 0), reverse=True)
        if not spent:
            return "The profiler has seen nothing on the device."
        whole = sum(time for time, _, _ in spent)
        calls = sum(count for _, count, _ in spent)
        head = ["kernel" if self._cuda else "operation", "share", "calls", *["us"] * self._cuda]
        listed = [*spent[:TOP], (whole, calls, "all")]
        rows = [
            [_short(name), f"{time / whole:.1%}", f"{count / _REPLAYS:g}", *[f"{time / _REPLAYS:.1f}"] * self._cuda]
            for time, count, name in listed
        ]
        return table(head, rows)

    def _microseconds(self, event: Any) -> float:
        if not self._cuda:
            return float(event.self_cpu_time_total)
        # A graph's launch on the host is given the time of its kernels too: count those alone.
        return float(event.self_device_time_total) if str(event.device_type).endswith("CUDA") else 0.0

    def _synchronize(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()


def profile_host(rig: Rig, subject: Subject, workload: Workload, streams: int, rounds: int = 2) -> str:
    """Profile the engine thread over some rounds: the functions with most own time, except waiting.

    Profiling makes calls of Python functions several times as slow: compare, do not add up.
    """
    recorder = cProfile.Profile()
    steps = sum(rig.profile(requests(subject, workload, streams, seed), recorder) for seed in range(rounds))
    return _functions(recorder, steps, absolute=subject.device.type == "cuda")


def _functions(recorder: cProfile.Profile, steps: int, *, absolute: bool) -> str:
    found: dict[tuple[str, int, str], tuple[Any, ...]] = pstats.Stats(recorder).stats  # type: ignore[attr-defined]
    work = {where: entry for where, entry in found.items() if not _waits(where)}
    spent = sorted(((entry[2], entry[1], where) for where, entry in work.items()), reverse=True)
    whole = sum(time for time, _, _ in spent)
    head = ["function", "share", "calls a step", *["us a step"] * absolute]
    rows = [
        [_place(where), f"{time / whole:.1%}", f"{calls / steps:.1f}", *[f"{1e6 * time / steps:.1f}"] * absolute]
        for time, calls, where in spent[: 2 * TOP]
    ]
    return table(head, rows)


def _waits(where: tuple[str, int, str]) -> bool:
    """Return whether a function does nothing but wait for the device."""
    return where[2] == "wait" or "synchronize" in where[2] or "acquire" in where[2]


def _place(where: tuple[str, int, str]) -> str:
    file, line, name = where
    if file == "~":
        return _short(name)
    parts = Path(file).parts
    return _short(f"{os.path.join(*parts[-2:])}:{line} {name}")


def _short(name: str) -> str:
    clean = name.replace("|", "/").replace("\n", " ")
    return clean if len(clean) <= 76 else f"{clean[:73]}..."
