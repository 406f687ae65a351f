"""A plain, slow Moondream 3 decoder, written from the facts about it and not from the package: the oracle of its tests.

One position after another, one head after another, one expert after another, in float64.
"""

import math

import torch
from torch import Tensor

from tests.models.moondream.checkpoints3 import Sizes

PREFIX = 26
THETA = 1.5e6


class Oracle:
    """Runs one sequence with tensors of the Hub layout.

    Args:
        state: The tensors.
        sizes: Of the model.
        rounded: Type in which positions are rounded before their logarithm.
    """

    def __init__(self, state: dict[str, Tensor], sizes: Sizes, rounded: torch.dtype = torch.float64) -> None:
        self.state = {name.removeprefix("model."): value.double() for name, value in state.items()}
        self.sizes, self.rounded = sizes, rounded
        self.keys: list[list[Tensor]] = [[] for _ in range(sizes.layers)]  # of each position, [heads, head size]
        self.values: list[list[Tensor]] = [[] for _ in range(sizes.layers)]
        self.distances: list[float] = []  # between the last chosen and the first other router logit

    def run(self, x: Tensor, *, bidirectional: bool = False) -> Tensor:
        """Append embeddings ``[T, dim]``; return raw hidden states. A bidirectional run sees all of itself."""
        x, start = x.double(), len(self.keys[0])
        for layer in range(self.sizes.layers):
            normed = self._norm(f"text.blocks.{layer}.ln", x)
            queries = []
            for offset, row in enumerate(normed):
                q, k, v = self._heads(layer, row, start + offset)
                queries.append(q)
                self.keys[layer].append(k)
                self.values[layer].append(v)
            attended = []
            for offset, q in enumerate(queries):
                seen = len(self.keys[layer]) if bidirectional else start + offset + 1
                keys, values = torch.stack(self.keys[layer][:seen]), torch.stack(self.values[layer][:seen])
                attended.append(torch.cat([self._attend(q[h], keys[:, h], values[:, h]) for h in range(len(q))]))
            branch = self._linear(f"text.blocks.{layer}.attn.proj", torch.stack(attended))
            x = x + branch + torch.stack([self._mlp(layer, row) for row in normed])
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        return self._linear("text.lm_head", self._norm("text.post_ln", hidden))

    def coordinate_logits(self, hidden: Tensor) -> Tensor:
        return self._linear("region.coord_decoder", self._region(hidden))

    def size_logits(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        both = self._linear("region.size_decoder", self._region(hidden))
        return both[..., : self.sizes.size_bins], both[..., self.sizes.size_bins :]

    def word(self, token: int) -> Tensor:
        return self.state["text.wte"][token]

    def coordinate(self, value: float) -> Tensor:
        angle = 2 * math.pi * value * self.state["region.coord_features"][0]
        return self._linear("region.coord_encoder", torch.cat((angle.cos(), angle.sin())))

    def size(self, width: float, height: float) -> Tensor:
        frequencies = self.state["region.size_features"]
        angle = 2 * math.pi * (width * frequencies[0] + height * frequencies[1])
        return self._linear("region.size_encoder", torch.cat((angle.cos(), angle.sin())))

    def _region(self, hidden: Tensor) -> Tensor:
        if self.sizes.switches.get("region", {}).get("input") == "normed":
            hidden = self._norm("text.post_ln", hidden)
        return self._norm("region.ln", hidden) if self.sizes.norm else hidden

    def _heads(self, layer: int, row: Tensor, position: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated q and k, and v as it is cached, ``[heads, head size]`` each."""
        tau = f"text.blocks.{layer}.attn.tau"
        qkv = self._linear(f"text.blocks.{layer}.attn.qkv", row)
        tanh = self.sizes.switches.get("text", {}).get("tau_gelu") == "tanh"
        feature = _gelu_tanh(qkv) if tanh else _gelu(qkv)
        heads = self.sizes.heads
        q, k, v = (part.view(heads, -1).clone() for part in qkv.chunk(3))
        place = (torch.tensor(position).to(self.rounded) + 1).log().double()
        for head in range(heads):
            at = 0.5 + torch.sigmoid(self.state[f"{tau}.alpha"][head] * place)
            q[head] *= torch.tanh(self.state[f"{tau}.wq"][head] @ feature) + at
            v[head] *= torch.tanh(self.state[f"{tau}.wv"][head] @ feature) + at
        return _turn(q, position), _turn(k, position), v

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        weights = (keys @ q / math.sqrt(len(q))).softmax(0)
        return weights @ values

    def _mlp(self, layer: int, row: Tensor) -> Tensor:
        name = f"text.blocks.{layer}.mlp"
        if layer < self.sizes.dense:
            return self._linear(f"{name}.fc2", _gelu_tanh(self._linear(f"{name}.fc1", row)))
        scores = self._linear(f"{name}.router", row)
        order = sorted(range(len(scores)), key=lambda index: -float(scores[index]))
        chosen = order[: self.sizes.chosen]
        if len(order) > len(chosen):
            self.distances.append(float(scores[chosen[-1]] - scores[order[len(chosen)]]))
        total = sum(math.exp(float(scores[index])) for index in chosen)
        out = torch.zeros_like(row)
        for index in chosen:
            up = self.state[f"{name}.fc1.weight"][index] @ row
            inside, gate = up[: self.sizes.inner], up[self.sizes.inner :]
            down = self.state[f"{name}.fc2.weight"][index] @ (_gelu(inside) * (gate + 1))
            out += math.exp(float(scores[index])) / total * down
        return out

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.state[f"{name}.weight"].T + self.state[f"{name}.bias"]

    def _norm(self, name: str, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * self.state[f"{name}.weight"] + self.state[f"{name}.bias"]


def _gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def _gelu_tanh(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _turn(heads: Tensor, position: int) -> Tensor:
    """Rotate the first half of each head; pairs are read from its halves and written side by side."""
    quarter = heads.shape[1] // 4
    turned = heads.clone()
    for index in range(quarter):
        angle = position * THETA ** (-2 * index / (2 * quarter))
        real, imag = heads[:, index], heads[:, quarter + index]
        turned[:, 2 * index] = real * math.cos(angle) - imag * math.sin(angle)
        turned[:, 2 * index + 1] = real * math.sin(angle) + imag * math.cos(angle)
    return turned
