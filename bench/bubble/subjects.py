"""Subjects of measurements: a model, its requests, and where they end."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import nn

from bench.bubble.stops import StopModel
from photonlite.config import EngineConfig
from photonlite.grammar.decoding.grammars import DetectGrammar, TextGrammar, Vocabulary
from photonlite.models.base import Model
from photonlite.models.families import LoadOptions
from photonlite.models.layers import RMSNorm
from photonlite.models.loading import resolve
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.experts import ExpertLinear
from photonlite.models.moondream.model import MoondreamModel
from photonlite.models.moondream.weights import load_model
from photonlite.request import Request, SamplingSettings, Token
from photonlite.runner.memory import bytes_of_page, longest_pages

Workload = Literal["text", "detect"]
"""Words, whose masks are known ahead; or boxes, whose masks depend on what was chosen before."""

WORKLOADS: tuple[Workload, ...] = get_args(Workload)

PROMPT, SPREAD, LENGTH = 800, 20, 110
"""Tokens of a prompt on average, how far prompts are from it at most, and tokens of an answer on average."""

STOP = PROMPT + LENGTH - 1
"""Where sequences end. A prompt of p tokens behind BOS has its last position at p, where the first token is chosen: an
answer of ``STOP - p + 1`` tokens ends at `STOP`."""

_STD = 0.02
_QUANTISED_STD = 64.0  # of e4m3 numbers in front of their scale
_PAGE = 16


@dataclass(frozen=True, slots=True)
class Subject:
    """A model that ends its sequences at one position.

    Attributes:
        name: For the report.
        model: On its device, in evaluation mode.
        vocabulary: What its grammars speak of.
        device: Where it is.
        dtype: Of its weights.
        stop: The position.
        prompt: Tokens of a prompt, on average.
        spread: How far prompts are from that at most.
    """

    name: str
    model: Model
    vocabulary: Vocabulary
    device: torch.device
    dtype: torch.dtype
    stop: int = STOP
    prompt: int = PROMPT
    spread: int = SPREAD


def random_moondream2(
    device: torch.device, dtype: torch.dtype = torch.bfloat16, seed: int = 0, max_context: int = 2048
) -> Subject:
    """Make a model of Moondream 2's shape with random weights that ends its sequences at `STOP`.

    Args:
        device: Where it is.
        dtype: Of its weights.
        seed: Of its weights.
        max_context: Positions; the published checkpoint has 2,048.
    """
    raw = {"model_type": "moondream2", "text": {"max_context": max_context}}
    model = random_model(MoondreamConfig.from_dict(raw), device, dtype, seed)
    return stopping("Moondream 2's shape, random weights", model, device, dtype)


def random_model(
    config: MoondreamConfig, device: torch.device, dtype: torch.dtype = torch.bfloat16, seed: int = 0
) -> MoondreamModel:
    """Make a model with random weights on a device: normal, norms aside, which are the identity."""
    with torch.device("meta"):
        empty = MoondreamModel(config).to(dtype)
    model = empty.to_empty(device=device).requires_grad_(False).eval()
    fill_randomly(model, seed)
    return model


def fill_randomly(model: nn.Module, seed: int) -> None:
    """Draw all weights from a normal distribution, but make the norms the identity."""
    generators: dict[torch.device, torch.Generator] = {}
    for module in model.modules():
        if isinstance(module, ExpertLinear) and module.scale is not None:
            module.scale.fill_(_STD / _QUANTISED_STD)
            for index, matrix in enumerate(module.weight):  # e4m3 is not drawn itself
                generator = generators.setdefault(matrix.device, torch.Generator(matrix.device).manual_seed(seed))
                wide = torch.randn(matrix.shape, device=matrix.device, generator=generator) * _QUANTISED_STD
                module.weight[index] = wide.clamp(-448, 448).to(matrix.dtype)
            continue
        for parameter in module.parameters(recurse=False):
            if isinstance(module, nn.LayerNorm | RMSNorm):
                parameter.fill_(float(parameter is module.weight))
                continue
            where = parameter.device
            generator = generators.setdefault(where, torch.Generator(where).manual_seed(seed))
            parameter.normal_(0, _STD, generator=generator)


def shipped(device: torch.device, dtype: torch.dtype = torch.float32) -> Subject:
    """Load the shipped checkpoint."""
    files = resolve(None)
    model = load_model(files.weights, files.config, LoadOptions(device, dtype))
    return stopping("the shipped checkpoint", model, device, dtype)


def stopping(name: str, model: MoondreamModel, device: torch.device, dtype: torch.dtype, stop: int = STOP) -> Subject:
    """Make a subject of a model."""
    ids, family = model.config.tokenizer, model.config.family
    vocabulary = Vocabulary(
        end=ids.eos_id,
        answer=ids.answer_id,
        coordinate=ids.coord_id,
        size=ids.size_id,
        ground_start=ids.start_ground_points_id,
        ground_end=ids.end_ground_id,
        any_id_continues=family.any_id_continues,
        suppressed_in_answer=tuple(getattr(ids, name) for name in family.suppressed_in_answer),
    )
    wrapped = StopModel(model, stop=stop, end=vocabulary.end, device=device, dtype=dtype)
    return Subject(name, wrapped, vocabulary, device, dtype, stop)


def prompt_lengths(subject: Subject, streams: int, seed: int) -> list[int]:
    """Spread the lengths of prompts evenly around their mean, in an order that depends on the seed."""
    if streams == 1:
        return [subject.prompt]
    low, high = subject.prompt - subject.spread, subject.prompt + subject.spread
    lengths = np.linspace(low, high, streams).round().astype(int)
    return [int(length) for length in np.random.default_rng(seed).permutation(lengths)]


def requests(subject: Subject, workload: Workload, streams: int, seed: int, *, bounded: bool = False) -> list[Request]:
    """Write the requests of a round: random words, and budgets that no answer exhausts.

    With `bounded`, budgets end the sequences where the device would: for a model that never stops, or to tell the host
    where a sequence will end.
    """
    shape, settings = subject.model.shape, SamplingSettings()
    rng = np.random.default_rng(seed)
    made = []
    for length in prompt_lengths(subject, streams, seed):
        # Ids below 21 are control ids in every family.
        prompt = tuple(Token(int(token)) for token in rng.integers(21, shape.vocab_size, length))
        budget = answer_length(subject, workload, length) if bounded else shape.max_context - length - 1
        grammar = _grammar(workload, subject.vocabulary, budget)
        made.append(Request(workload, prompt, grammar, budget, settings))
    return made


def answer_length(subject: Subject, workload: Workload, prompt: int) -> int:
    """Return the tokens of an answer, the end included: a list ends where it first may from the stop on."""
    least = subject.stop - prompt + 1
    return least if workload == "text" else 3 * -(-(least - 1) // 3) + 1


def ending_at(subject: Subject, stop: int, prompt: int, spread: int) -> Subject:
    """Return the subject with another end position and other prompts.

    Raises:
        TypeError: Its model does not end sequences at a position.
    """
    if not isinstance(subject.model, StopModel):
        raise TypeError(f"{subject.name} is a {type(subject.model).__name__}, which has no stop to move")
    model = subject.model.ending_at(stop)
    return dataclasses.replace(subject, model=model, stop=stop, prompt=prompt, spread=spread)


def engine_config(subject: Subject, streams: Sequence[int], depth: int) -> EngineConfig:
    """Configure an engine that prefills all prompts of a round in one launch and captures the graphs it needs."""
    shape, most = subject.model.shape, max(streams)
    longest = subject.prompt + subject.spread + 1
    config = EngineConfig(
        depth=depth,
        max_batch=most,
        page_size=_PAGE,
        prefix_caching=False,
        max_crops=1,
        max_prefill_tokens=most * longest,
        graph_sizes=tuple(sorted(set(streams))),
    )
    # For every sequence up to its end, and for one longest request, which any engine must have room for.
    pages = most * -(-(subject.stop + 2 * _PAGE) // _PAGE) + longest_pages(shape, _PAGE) + 1
    return dataclasses.replace(config, kv_cache_bytes=pages * bytes_of_page(shape, subject.dtype, _PAGE))


def _grammar(workload: Workload, vocabulary: Vocabulary, budget: int) -> TextGrammar | DetectGrammar:
    if workload == "text":
        return TextGrammar(vocabulary, budget)
    return DetectGrammar(vocabulary, budget, max_objects=budget)
