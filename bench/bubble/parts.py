"""The parts of the bench, which fail independently, and the report that they fill."""

import argparse
import dataclasses
import json
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from bench.bubble.ablations import GRAPHS, MASKS, PADDED_STREAMS, PADDING, Variant, ablation_table
from bench.bubble.ablations import measure as measure_variants
from bench.bubble.comparison import TRACED, Comparison, compare
from bench.bubble.graph_memory import graph_memory_table, measure_graph_memory
from bench.bubble.profiles import StepProfile, profile_host
from bench.bubble.report import NOTES, Writer, many, published
from bench.bubble.rounds import Rig
from bench.bubble.short_answers import measure_short_answers, short_answer_table
from bench.bubble.subjects import (
    Subject,
    Workload,
    engine_config,
    random_moondream2,
    shipped,
)
from bench.bubble.timeline_images import save_timelines
from bench.bubble.whole_run import CONTEXT, run_whole, save_runs, whole_run_table
from bench.gpu.machine import describe
from bench.gpu.page import Page
from photonlite.observe.trace import Tracer

PARTS = ("rounds", "host", "kernels", "masks", "graphs", "padding", "pools", "short", "whole")
ABLATION_ROUNDS = 8
"""Rounds of an ablation at most."""
PADDED_ROOM = 32
"""Rows that the batch of the padding ablation has room for."""
QUEUED = 6
"""Requests in the queue of short answers for each row of the batch."""


class BubbleBench:
    """One run of the command: the subject, the engines that several parts use, and the report.

    Args:
        options: The command line.
        command: The command line.
    """

    def __init__(self, options: argparse.Namespace, command: str) -> None:
        self._options = options
        self._cuda = options.device.type == "cuda"
        self._begun = time.perf_counter()
        self._page = Page("The GPU bubble: blocking against pipelined decoding", options.output)
        self._failures: list[str] = []
        self._rigs: tuple[Rig, Rig] | None = None
        made = random_moondream2(options.device) if self._cuda else shipped(options.device)
        self._subject = dataclasses.replace(made, spread=options.spread)
        self._page.put("", _preamble(self._subject, options, command))
        _say(str(self._page))

    def run(self) -> int:
        """Run the selected parts in the order of `PARTS`; returns the exit code."""
        parts: dict[str, Callable[[], None]] = {
            "rounds": self._rounds,
            "host": self._host,
            "kernels": self._kernels,
            "masks": self._masks,
            "graphs": self._graphs,
            "padding": self._padding,
            "pools": self._pools,
            "short": self._short,
            "whole": self._whole,
        }
        for name in PARTS:
            if name not in ("rounds", "host"):
                self.close()
            if name in self._options.only:
                self._attempt(name, parts[name])
        _say(f"done after {time.perf_counter() - self._begun:.0f} s; not measured: {len(self._failures)}")
        return 1 if self._failures else 0

    def _attempt(self, name: str, part: Callable[[], None]) -> None:
        """Run a part; report its failure and go on."""
        begun = time.perf_counter()
        try:
            part()
        except Exception as error:  # a part that cannot run here leaves a gap, whatever it raises
            traceback.print_exc()
            text = " ".join(f"{type(error).__name__}: {error}".split())
            self._failures.append(f"- {name}: {text:.300}")
            self._page.put("Not measured", "\n".join(self._failures))
        finally:
            if self._cuda:
                torch.cuda.empty_cache()
            _say(f"# {name}: {time.perf_counter() - begun:.0f} s, {time.perf_counter() - self._begun:.0f} s in all")

    def _open_rigs(self) -> tuple[Rig, Rig]:
        """Return the engines of depth 1 and 2."""
        if self._rigs is None:
            block, pipe = (engine_config(self._subject, self._options.streams, depth) for depth in (1, 2))
            self._rigs = Rig(self._subject, block), Rig(self._subject, pipe)
            for rig in self._rigs:
                if rig.graphs is not None:
                    _say(f"depth {rig.depth}: {rig.graphs.graphs} graphs in {rig.graphs.seconds:.0f} s")
        return self._rigs

    def close(self) -> None:
        """Close the engines."""
        for rig in self._rigs or ():
            rig.close()
        self._rigs = None

    def _rounds(self) -> None:
        options, subject, rigs = self._options, self._subject, self._open_rigs()
        hardware = torch.cuda.get_device_name(subject.device) if self._cuda else "CPU"
        writer = Writer(hardware, absolute=self._cuda)
        found: list[Comparison] = []
        for streams in options.streams:
            for workload in options.workloads:
                one = compare(rigs, subject, workload, streams, options.rounds)
                found.append(one)
                _say(writer.line(one))
                _fill(self._page, writer, found)
                if options.timeline:
                    _say(f"  {save_timelines(one, options.timeline)}")
                if options.trace:
                    _save_traces(one, options.trace)
                if options.data:
                    _save_rounds(found, options.data)
        _say(str(self._page))

    def _host(self) -> None:
        options, pipelined = self._options, self._open_rigs()[1]
        for workload, streams in dict.fromkeys(zip(*_ends(options), strict=True)):
            text = profile_host(pipelined, self._subject, workload, streams)
            self._add(f"Engine thread: {workload}, {many(streams)}", text)

    def _kernels(self) -> None:
        for streams in dict.fromkeys(_ends(self._options)[1]):
            step = StepProfile(self._subject, streams)
            try:
                parts = {"forward": step.forward(), "finalize of words": step.finalize("text")}
                parts["finalize of the first place of a box"] = step.finalize("decide")
            finally:
                step.close()
            for name, text in parts.items():
                self._add(f"Kernels: {name}, {many(streams)}", text)

    def _masks(self) -> None:
        cases = [(workload, streams) for streams in _ends(self._options)[1] for workload in self._options.workloads]
        self._variants("Masks before and after the launch", MASKS, list(dict.fromkeys(cases)))

    def _graphs(self) -> None:
        cases: list[tuple[Workload, int]] = [("text", streams) for streams in dict.fromkeys(_ends(self._options)[1])]
        self._variants("CUDA graphs on and off", GRAPHS, cases)

    def _padding(self) -> None:
        self._variants("Padding against exact sizes", PADDING, [("text", PADDED_STREAMS)], room=PADDED_ROOM)

    def _variants(
        self, title: str, variants: Sequence[Variant], cases: Sequence[tuple[Workload, int]], room: int | None = None
    ) -> None:
        rounds = min(self._options.rounds, ABLATION_ROUNDS)
        found = measure_variants(variants, self._subject, cases, rounds, room)
        self._add(title, f"Rounds: {rounds} of each, alternating.\n\n{ablation_table(found, absolute=self._cuda)}")

    def _pools(self) -> None:
        sizes = self._options.streams
        self._add(
            "Memory of one and of two graphs", graph_memory_table(measure_graph_memory(self._subject, sizes), sizes)
        )

    def _short(self) -> None:
        streams, rounds = self._options.streams[-1], min(self._options.rounds, ABLATION_ROUNDS)
        found = measure_short_answers(self._subject, streams, QUEUED * streams, rounds)
        text = (
            f"{QUEUED * streams} requests handed in together to {streams} rows, "
            f"prompts of {self._subject.prompt} tokens. Rounds: {rounds} of each engine, alternating."
        )
        self._add("Answers of 3 tokens", f"{text}\n\n{short_answer_table(found, absolute=self._cuda)}")

    def _whole(self) -> None:
        options = self._options
        subject = random_moondream2(options.device, max_context=CONTEXT) if self._cuda else self._subject
        found = run_whole(subject, options.streams[-1], options.tokens)
        if options.data:
            made = f"{time.strftime('%Y-%m-%d')}, {describe(options.device)}; {subject.name}"
            save_runs(found, made, options.data / "whole-run.json")
        text = (
            f"Context of {subject.model.shape.max_context:,} positions; traced from the first launch to the last token."
        )
        self._add("A whole run", f"{text}\n\n{whole_run_table(found, absolute=self._cuda)}")

    def _add(self, name: str, text: str) -> None:
        self._page.put(name, text)
        _say(f"## {name}\n\n{text}\n")


def _ends(options: argparse.Namespace) -> tuple[tuple[Workload, Workload], tuple[int, int]]:
    """Return the first and the last of the workloads, and of the numbers of streams."""
    workloads, streams = options.workloads, options.streams
    return (workloads[0], workloads[-1]), (streams[0], streams[-1])


def _fill(page: Page, writer: Writer, found: Sequence[Comparison]) -> None:
    sections: dict[str, Callable[[Sequence[Comparison]], str]] = {
        "Blocking against pipelined": writer.speed,
        "The cost of zombies, prediction and observation": writer.model,
        "The published study": lambda _: published(),
        "Aims": writer.aims,
        "Both depths": writer.depths,
        "The host": writer.host,
        "Answers": writer.agreement,
    }
    for name, write in sections.items():
        page.put(name, write(found))
    page.put("How to read this", NOTES)


def _preamble(subject: Subject, options: argparse.Namespace, command: str) -> str:
    number_type = str(subject.dtype).removeprefix("torch.")
    return (
        f"{time.strftime('%Y-%m-%d')}, {describe(subject.device)}.\n"
        f"Model: {subject.name}, {number_type}; context about {(subject.prompt + subject.stop) // 2}, "
        f"prompts of {subject.prompt} tokens, give or take {subject.spread}; "
        f"{options.rounds} rounds of each kind, alternating, and at most {TRACED} more that are traced.\n"
        f"Made by `python -m bench.bubble {command}`."
    )


def _save_rounds(found: Sequence[Comparison], folder: Path) -> None:
    """Write the figures of single rounds, in seconds, for other statistics than those of the report."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "workload": one.workload,
            "streams": one.streams,
            "block": {"periods": one.block.periods, "walls": one.block.walls},
            "pipe": {"periods": one.pipe.periods, "walls": one.pipe.walls},
            "told": {"walls": one.told_walls},
        }
        for one in found
    ]
    (folder / "rounds.json").write_text(json.dumps(rows) + "\n")


def _save_traces(one: Comparison, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, depth in ((1, one.block), (2, one.pipe)):
        tracer = Tracer()
        for span in depth.last.spans:
            tracer.span(span.track, span.name, span.start_s, span.end_s, **span.args)
        tracer.save(folder / f"trace-{one.workload}-{one.streams}-depth{number}.json.gz")


def _say(text: str) -> None:
    print(text, flush=True)
