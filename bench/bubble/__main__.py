"""Measure the GPU bubble: `python -m bench.bubble`.

Requests are handed in together, prefilled together and decoded to their ends, on engines of depth 1 (blocking) and
depth 2 (pipelined) by turns. On a CUDA card the model has Moondream 2's shape and random weights; on a CPU it is the
shipped checkpoint, and figures are ratios. What has been measured is printed and written as it comes.
"""

import argparse
import dataclasses
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from bench.bubble.comparison import Comparison, compare
from bench.bubble.pictures import save_timelines
from bench.bubble.profiles import StepProfile, profile_host
from bench.bubble.report import NOTES, Writer, many
from bench.bubble.rounds import Rig
from bench.bubble.subjects import (
    LENGTH,
    SPREAD,
    WORKLOADS,
    Subject,
    Workload,
    engine_config,
    random_moondream2,
    shipped,
)
from bench.gpu.machine import describe
from bench.gpu.page import Page
from photonlite.device.names import resolve_device
from photonlite.errors import SettingsError
from photonlite.observe.trace import Tracer

CARD_STREAMS, CPU_STREAMS = (1, 8, 32), (1, 4)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.bubble", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--streams", type=int, nargs="+", help="requests at a time; 1 8 32 on a card, 1 4 on a CPU")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=3, help="of each kind, traced and not; one more warms up")
    parser.add_argument("--spread", type=int, default=SPREAD, help="how far prompts are from their mean length at most")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch on a CPU: the others are the host's")
    parser.add_argument("--output", type=Path, help="markdown file to write")
    parser.add_argument("--timeline", type=Path, metavar="DIR", help="folder for pictures of some periods")
    parser.add_argument("--trace", type=Path, metavar="DIR", help="folder for traces that ui.perfetto.dev opens")
    parser.add_argument("--kernels", action="store_true", help="list the kernels of a decode step")
    parser.add_argument("--host-profile", action="store_true", help="list the functions of the engine thread")
    options = parser.parse_args(arguments)
    try:
        options.device = resolve_device(options.device)
    except SettingsError as error:
        parser.error(str(error))
    if options.rounds < 1 or min(options.streams or [1]) < 1:
        parser.error("rounds and streams are at least 1")
    if not 0 <= options.spread < LENGTH - 1:
        parser.error(f"a spread lies between 0 and {LENGTH - 2}: answers have {LENGTH} tokens on average")
    return options


def measure(rigs: tuple[Rig, Rig], subject: Subject, options: argparse.Namespace, page: Page) -> None:
    """Compare the depths for every workload and number of streams."""
    cuda = subject.device.type == "cuda"
    writer = Writer(torch.cuda.get_device_name(subject.device) if cuda else "CPU", absolute=cuda)
    found: list[Comparison] = []
    for streams in options.streams:
        for workload in options.workloads:
            one = compare(rigs, subject, workload, streams, options.rounds)
            found.append(one)
            _say(writer.line(one))
            _fill(page, writer, found)
            if options.timeline:
                _say(f"  {save_timelines(one, options.timeline)}")
            if options.trace:
                _save_traces(one, options.trace)


def _fill(page: Page, writer: Writer, found: Sequence[Comparison]) -> None:
    sections: dict[str, Callable[[Sequence[Comparison]], str]] = {
        "Blocking against pipelined": writer.speed,
        "A step at depth 2, prediction and observation": writer.parts,
        "Aims": writer.aims,
        "Both depths": writer.depths,
        "The host": writer.host,
        "Answers": writer.agreement,
    }
    for name, write in sections.items():
        page.put(name, write(found))
    page.put("How to read this", NOTES)


def profile_kernels(subject: Subject, streams: int, page: Page) -> None:
    """List what one decode step runs on the device."""
    step = StepProfile(subject, streams)
    parts = {"forward": step.forward(), "finalize of words": step.finalize("text")}
    parts["finalize of the first place of a box"] = step.finalize("decide")
    step.close()
    for name, text in parts.items():
        _add(page, f"Kernels: {name}, {many(streams)}", text)


def profile_threads(rig: Rig, subject: Subject, workload: Workload, streams: int, page: Page) -> None:
    """List what the engine thread does."""
    _add(page, f"Engine thread: {workload}, {many(streams)}", profile_host(rig, subject, workload, streams))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = parse(arguments)
    device = options.device
    cuda = device.type == "cuda"
    options.streams = options.streams or list(CARD_STREAMS if cuda else CPU_STREAMS)
    if not cuda:
        torch.set_num_threads(options.threads)
    page = Page("The GPU bubble: blocking against pipelined decoding", options.output)
    begun = time.perf_counter()
    subject = dataclasses.replace(random_moondream2(device) if cuda else shipped(device), spread=options.spread)
    page.put("", _preamble(subject, options, arguments))
    _say(str(page))
    blocking, pipelined = (engine_config(subject, options.streams, depth) for depth in (1, 2))
    rigs = Rig(subject, blocking), Rig(subject, pipelined)
    for rig in rigs:
        if rig.graphs is not None:
            _say(f"depth {rig.depth}: {rig.graphs.graphs} graphs in {rig.graphs.seconds:.0f} s")
    _say(f"engines stand after {time.perf_counter() - begun:.0f} s")
    try:
        measure(rigs, subject, options, page)
        _say(str(page))
        if options.host_profile:
            profile_threads(rigs[1], subject, options.workloads[0], options.streams[0], page)
            profile_threads(rigs[1], subject, options.workloads[-1], options.streams[-1], page)
    finally:
        for rig in rigs:
            rig.close()
    if options.kernels:
        for streams in sorted({options.streams[0], options.streams[-1]}):
            profile_kernels(subject, streams, page)
    _say(f"done after {time.perf_counter() - begun:.0f} s")
    return 0


def _preamble(subject: Subject, options: argparse.Namespace, arguments: Sequence[str] | None) -> str:
    command = shlex.join(sys.argv[1:] if arguments is None else arguments)
    number_type = str(subject.dtype).removeprefix("torch.")
    return (
        f"{time.strftime('%Y-%m-%d')}, {describe(subject.device)}.\n"
        f"Model: {subject.name}, {number_type}; context about {(subject.prompt + subject.stop) // 2}, "
        f"prompts of {subject.prompt} tokens, give or take {subject.spread}; "
        f"{options.rounds} rounds traced and {options.rounds} not, after one that warms up; depths by turns.\n"
        f"Made by `python -m bench.bubble {command}`."
    )


def _save_traces(one: Comparison, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, depth in ((1, one.block), (2, one.pipe)):
        tracer = Tracer()
        for span in depth.last.spans:
            tracer.span(span.track, span.name, span.start_s, span.end_s, **span.args)
        tracer.save(folder / f"trace-{one.workload}-{one.streams}-depth{number}.json.gz")


def _add(page: Page, name: str, text: str) -> None:
    page.put(name, text)
    _say(f"## {name}\n\n{text}\n")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
