"""How many experts a step really meets: sequences that route alike read few of them, and fake its time."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from bench.bubble.report import table
from photonlite.models.layers import MaskedAttention
from photonlite.models.moondream.experts import MixtureMLP
from photonlite.models.moondream.model import MoondreamModel


@contextlib.contextmanager
def counting_experts(model: nn.Module) -> Iterator[list[int]]:
    """Collect how many different experts the rows of each layer go to, in plain forward passes inside."""
    counts: list[int] = []

    def note(mixture: MixtureMLP, _: object, logits: Tensor) -> None:
        counts.append(len(set(logits.topk(mixture.rank_count).indices.flatten().tolist())))

    with contextlib.ExitStack() as stack:
        for mixture in model.modules():
            if isinstance(mixture, MixtureMLP):
                hook = mixture.router.register_forward_hook(
                    lambda _, given, logits, mixture=mixture: note(mixture, given, logits)
                )
                stack.callback(hook.remove)
        yield counts


@torch.inference_mode()
def random_routes(model: MoondreamModel, streams: int) -> list[int]:
    """Return how many experts of each layer some sequences of one random word go to."""
    device = model.text.wte.device
    words = torch.randint(21, model.shape.vocab_size, (streams, 1), device=device)
    with counting_experts(model) as counts:
        model.forward(model.embed(words), torch.zeros_like(words), MaskedAttention())
    return counts


def routes_row(streams: int, experts: int, ranks: int, counts: list[int]) -> list[str]:
    """Return a row of the table: what was met in each layer, and what even and independent routes would meet."""
    even = experts * (1 - (1 - ranks / experts) ** streams)
    mean = sum(counts) / len(counts)
    return [str(streams), f"{mean:.1f}", f"{min(counts)} to {max(counts)}", f"{even:.1f}"]


def routes_table(rows: list[list[str]]) -> str:
    return table(["streams", "experts a layer", "least to most", "if routes were even"], rows)
