"""A tiny model whose sequences end where the device says, and rounds made up by hand."""

import dataclasses

import torch

from bench.bubble.comparison import Agreement, Comparison, DepthFigures
from bench.bubble.rounds import Round
from bench.bubble.subjects import Subject, Workload, stopping
from photonlite.observe.trace import Span
from tests.tiny import CPU, tiny_config, tiny_model

STOP = 60


def tiny_subject(kind: str = "photonlite_nano", stop: int = STOP) -> Subject:
    """Prompts of 40 tokens, give or take 5, that end at position 60."""
    model = tiny_model(tiny_config(kind)).double()
    return dataclasses.replace(stopping("tiny", model, CPU, torch.float64, stop), prompt=40, spread=5)


def spans_of(steps: int, *, forward: float, finalize: float, idle: float, start: float = 10.0) -> list[Span]:
    """Blocking decode steps: launch while the device is idle, wait from the launch until the results are there.

    Results arrive when finalize ends; reading them takes a tenth of the idle time, commit and plan two tenths each,
    launch five.
    """
    spans = []
    for step in range(steps):
        begin = start + step * (forward + finalize + idle)
        sampled = begin + forward
        end = sampled + finalize
        spans += [
            Span("compute", "forward", begin, sampled, {"step": step}),
            Span("compute", "finalize", sampled, end, {"step": step}),
            Span("download", "results", end, end, {"step": step}),
            Span("host", "wait", begin, end + 0.1 * idle, {"step": step}),
            Span("host", "commit", end + 0.1 * idle, end + 0.3 * idle, {"step": step}),
            Span("host", "plan", end + 0.3 * idle, end + 0.5 * idle, {}),
            Span("host", "launch", end + 0.5 * idle, end + idle, {"step": step + 1}),
        ]
    return spans


def round_of(
    period: float, steps: int, *, streams: int = 1, zombies: int = 0, spans: list[Span] | None = None
) -> Round:
    """Sequences of `steps` + 1 tokens, one period a step; with zombies there is one step more."""
    prefilled, extra = 10.0, int(zombies > 0)
    ended = prefilled + period * steps
    return Round(
        tokens=[[(7, ())] * (steps + 1)] * streams,
        submitted=prefilled - 1.0,
        prefilled=prefilled,
        first_end=ended,
        last_end=ended,
        freed=ended + period * extra,
        commits=[prefilled + period * index for index in range(steps + 1)],
        prefills=1,
        steps=steps + extra,
        rows=streams * steps + zombies,
        zombies=zombies,
        spans=spans or [],
    )


def comparison(
    t_block: float, t_pipe: float, *, streams: int = 1, workload: Workload = "text", steps: int = 99
) -> Comparison:
    """Two rounds of each kind at both depths; the device is idle for what the periods differ by."""
    forward, finalize = 0.9 * t_pipe, 0.1 * t_pipe - 1e-5
    figures = []
    for period, zombies in ((t_block, 0), (t_pipe, streams)):
        spans = spans_of(steps, forward=forward, finalize=finalize, idle=period - forward - finalize)
        plain = [round_of(period, steps, streams=streams, zombies=zombies)] * 2
        traced = [dataclasses.replace(plain[0], spans=spans)] * 2
        figures.append(DepthFigures.of(plain, traced))
    agreement = Agreement.of([([(7, ())], [(7, ())])])
    told = [t_pipe * steps] * 2
    return Comparison(workload, streams, *figures, told, agreement)
