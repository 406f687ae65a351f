"""Fused decode steps against plain ones: how far logits are from a float32 truth, and where greedy tokens differ.

```sh
python -m bench.agreement                    # a tiny model on the CPU, where both run the same operations
python -m bench.agreement --device cuda --output bench/results/agreement.md
```

Rows of random words are decoded from their first position on by three models with the same random weights, each with a
cache of its own: plain in float32 (the truth), plain in bfloat16, and fused in bfloat16. After the words all three are
fed what the plain one in bfloat16 finds likeliest: its greedy run. Where another one would have chosen another token, a
margin tells whether that was a near-tie: how far apart the true logits of the two tokens are.
"""

import argparse
import copy
import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from bench.bubble.report import table
from bench.bubble.subjects import random_model
from bench.gpu.machine import describe
from bench.gpu.page import Page
from bench.shapes import MOONDREAM2, TINY
from photonlite.device.names import resolve_device
from photonlite.errors import SettingsError
from photonlite.models.base import NextPositions
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.fused.decode import FusedDecode
from photonlite.models.moondream.model import MoondreamModel
from photonlite.runner.buffers import PagedCache
from photonlite.runner.decode import decode_attention
from photonlite.runner.slots import PAGES, PENDING_ROW, POSITION, WRITE_SLOT
from photonlite.runner.tokens import head_logits

PAGE = 16


@dataclass(slots=True)
class Tally:
    """What one way of decoding did at all positions.

    Attributes:
        errors: Of each step, root mean square of the logits' error over that of the true logits.
        agreed: Tokens that are the greedy ones of plain bfloat16.
        tokens: All of them.
        margins: Of the others, in units of the standard deviation of a true row of logits.
    """

    errors: list[float] = field(default_factory=list)
    agreed: int = 0
    tokens: int = 0
    margins: list[float] = field(default_factory=list)

    def add(self, logits: Tensor, truth: Tensor, greedy: Tensor) -> None:
        """Count a step: logits ``[B, vocab]`` of both, and the greedy tokens ``[B]``."""
        self.errors.append(float((logits.double() - truth).norm() / truth.norm()))
        chosen = logits.argmax(dim=-1)
        self.agreed += int((chosen == greedy).sum())
        self.tokens += len(greedy)
        gap = truth.gather(1, greedy[:, None]) - truth.gather(1, chosen[:, None])
        share = (gap[:, 0].abs() / truth.std(dim=-1))[chosen != greedy]
        self.margins += share.tolist()


class Decoder:
    """One model with a cache of its own, one position of every row at a time.

    Args:
        model: In evaluation mode.
        rows: How many.
        positions: Of each, at most.
        fused: Whether fused kernels decode.
    """

    def __init__(self, model: MoondreamModel, rows: int, positions: int, *, fused: bool) -> None:
        weight = model.text.wte
        pages = -(-positions // PAGE)
        self._model = model
        self._cache = PagedCache(model.shape, 1 + rows * pages, PAGE, weight.device, weight.dtype)
        self._rows = torch.zeros(rows, PAGES + pages, dtype=torch.int32, device=weight.device)
        self._rows[:, PENDING_ROW] = torch.arange(rows)
        self._rows[:, PAGES:] = 1 + torch.arange(rows * pages).view(rows, pages)
        self._steps = FusedDecode(model.config.text, model.packed_blocks) if fused else None

    def __call__(self, ids: Tensor, position: int) -> Tensor:
        """Return the logits behind tokens ``[B]`` at a position, ``[B, vocab]``."""
        rows = self._rows
        rows[:, POSITION] = position
        rows[:, WRITE_SLOT] = rows[:, PAGES + position // PAGE] * PAGE + position % PAGE
        x = self._model.embed(ids)
        if self._steps is None:
            attention = decode_attention(self._cache, rows)
            return self._model.logits(
                self._model.forward(x[:, None], rows[:, POSITION : POSITION + 1], attention)[:, 0]
            )
        hidden = self._steps(x, NextPositions(rows[:, POSITION], rows[:, WRITE_SLOT], rows[:, PAGES:]), self._cache)
        return head_logits(self._model, "text", hidden)


def compare(model: MoondreamModel, truth: MoondreamModel, rows: int, words: int, tokens: int) -> tuple[Tally, Tally]:
    """Decode some rows of random words and their greedy continuations.

    Args:
        model: In a narrow type.
        truth: With the same weights, in float32.
        rows: How many.
        words: Of each row, random.
        tokens: Behind them.

    Returns:
        Results of plain and of fused decoding.
    """
    ends = words + tokens
    exact, plain = Decoder(truth, rows, ends, fused=False), Decoder(model, rows, ends, fused=False)
    fused = Decoder(model, rows, ends, fused=True)
    device = model.text.wte.device
    ids = torch.randint(model.shape.vocab_size, (rows,), device=device)
    found = Tally(), Tally()
    for position in range(ends):
        logits = plain(ids, position)
        others = exact(ids, position).double(), fused(ids, position)
        greedy = logits.argmax(dim=-1)
        found[0].add(logits, others[0], greedy)
        found[1].add(others[1], others[0], greedy)
        ids = greedy if position + 1 >= words else torch.randint(model.shape.vocab_size, (rows,), device=device)
    return found


def write(found: dict[int, tuple[Tally, Tally]]) -> str:
    """Write a row for each batch size."""
    lines = []
    for rows, (plain, fused) in found.items():
        errors = [f"{100 * sum(one.errors) / len(one.errors):.2f} %" for one in (plain, fused)]
        margins = sorted(fused.margins)
        shown = f"{margins[len(margins) // 2]:.3f} / {margins[-1]:.3f}" if margins else "-"
        share = f"{100 * fused.agreed / fused.tokens:.2f} %"
        lines.append([str(rows), *errors, str(fused.tokens), share, shown])
    heads = ["rows", "error, plain", "error, fused", "tokens", "greedy tokens alike", "margins: median / largest"]
    return table(heads, lines)


_NOTES = """- Error: root mean square of the logits' error against a float32 model with the same weights, over that of
  its logits; mean of all positions.
- Greedy tokens alike: positions at which the fused model's likeliest token is the plain one's, in bfloat16 both.
- Margins: at the other positions, how far the float32 logits of the two tokens are apart, in standard deviations of a
  row of logits: a margin within the error is a near-tie."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison and write the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.agreement", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--words", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    try:
        device = resolve_device(options.device)
    except SettingsError as error:
        parser.error(str(error))
    config = MoondreamConfig.from_dict(MOONDREAM2 if device.type == "cuda" else TINY)
    with torch.inference_mode():
        torch.manual_seed(0)
        model = random_model(config, device)
        truth = copy.deepcopy(model).float()
        found = {rows: compare(model, truth, rows, options.words, options.tokens) for rows in options.rows}
    page = Page("Fused decode steps against plain ones", options.output)
    made = f"python -m bench.agreement --device {device.type}" + (" --output FILE" if options.output else "")
    shape = "Moondream 2's shape" if device.type == "cuda" else "A tiny shape, whose figures mean nothing"
    page.put("", f"{datetime.date.today()}, {describe(device)}.\n{shape}, random weights, bfloat16. Made by `{made}`.")
    page.put("Figures", write(found))
    page.put("How to read this", _NOTES)
    print(page)


if __name__ == "__main__":
    main()
