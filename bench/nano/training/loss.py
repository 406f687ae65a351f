"""Training losses: answers of packed questions, bins with soft targets, and a dense loss on the image tokens.

One row holds the image once and all of its questions:

```
BOS  image tokens ...  | question 1 ... | question 2 ... | ...
└─ see one another ──┘   each sees the prefix and, causally, itself; each starts at the position after the image
```
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from bench.nano.questions.layout import BOS, COORD, SIZE, Questions
from bench.nano.questions.mix import PARTS
from bench.nano.questions.tokenizer import FIRST_INTEGER, INTEGERS
from bench.nano.scenes.batched.layouts import MAX_OBJECTS
from bench.nano.scenes.batched.truth import LEAD, TOLD, Dense
from photonlite.models.layers import attend, layer_norm
from photonlite.models.moondream.config import VisionConfig
from photonlite.models.moondream.model import SIZE_OCTAVES, MoondreamModel

_SOFT_BINS = 2.0
_SOFT_STEPS = 8.0  # of an outline's grid of 960
_BACKGROUND_WEIGHT = 0.1
_BLOCK = 128  # of FlexAttention


class Rows(NamedTuple):
    """Packed questions: the columns of `Questions` [B, L] or [B, L, 2], and what tells questions apart."""

    ids: Tensor
    values: Tensor
    weight: Tensor
    outline: Tensor
    part: Tensor  # Part of the loss that a token's question belongs to, a place in `mix.PARTS`, [B, L]
    start: Tensor  # Where a token's question begins, [B, L]; behind the last question every token is one of its own


class PackedAttention:
    """Attention over one prefix and several questions that do not see one another.

    `show` says where the questions of a batch begin. On a card by FlexAttention, which skips blocks that no question
    can see: its blocks are those of questions of the greatest length at any place.
    """

    def __init__(self, prefix: int, batch: int, room: int, longest: int, device: torch.device) -> None:
        self.prefix = prefix
        self.start = torch.zeros(batch, room, dtype=torch.long, device=device)
        self._blocks = self._visible_blocks(longest) if device.type == "cuda" else None

    def show(self, start: Tensor) -> None:
        """Take where questions begin, [B, L]; see `Rows`."""
        if self._blocks is None:
            self.start = start
        else:
            self.start.copy_(start)  # compiled code reads this place

    @property
    def positions(self) -> Tensor:
        """Positions of prefix and questions, [B, prefix + L]: every question begins behind the prefix."""
        place = torch.arange(self.prefix + self.start.shape[1], device=self.start.device)
        return place - functional.pad(self.start, (self.prefix, 0))

    @property
    def last(self) -> Tensor:
        """Whether a token is the last one of its question, [B, L]."""
        return functional.pad(self.start[:, 1:] != self.start[:, :-1], (0, 1), value=True)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend; see `photonlite.models.layers.Attention`."""
        n = self.prefix
        image = attend(q[:, :n], k[:, :n], v[:, :n], None)
        return torch.cat((image, self._questions(q[:, n:], k, v)), 1)

    def _questions(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self._blocks is None:
            return attend(q, k, v, self._mask())
        # Autocast leaves this operation's arguments as they are, and rotated ones are float32. Contiguous: compiled for
        # a CPU by torch 2.13, FlexAttention reads a view from the beginning of its storage.
        q, k, v = (x.to(v.dtype).transpose(1, 2).contiguous() for x in (q, k, v))
        out: Tensor = flex_attention(q, k, v, block_mask=self._blocks)
        return out.transpose(1, 2)

    def _mask(self) -> Tensor:
        """What questions see, bool [B, 1, L, prefix + L]."""
        place = torch.arange(self.start.shape[1], device=self.start.device)
        own = (place >= self.start[..., None]) & (place <= place[:, None])
        return functional.pad(own, (self.prefix, 0), value=True)[:, None]

    def _visible_blocks(self, longest: int) -> BlockMask:
        prefix, start, room = self.prefix, self.start, self.start.shape[1]

        def may_see(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            own = key - prefix
            return (own < 0) | ((own > query - longest) & (own <= query))

        def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            own = key - prefix
            return (own < 0) | ((own >= start[batch, query]) & (own <= query))

        # No block of questions is seen whole, so what holds for the longest holds for all.
        assert longest < 2 * _BLOCK, f"a question of {longest} tokens may see a whole block of others"
        blocks = create_block_mask(may_see, None, None, room, prefix + room, str(start.device), _BLOCK)
        blocks.mask_mod = sees
        return blocks


@dataclass(frozen=True)
class Weights:
    """How much each part of the loss counts; the defaults are those of the shipped checkpoint's last run."""

    decision: float = 2.0
    text: float = 2.0
    coord: float = 1.0
    size: float = 1.0
    path: float = 3.0
    lead: float = 4.0
    start: float = 4.0
    typed: float = 3.0
    patch_class: float = 1.0
    patch_centre: float = 1.0
    patch_number: float = 1.0
    patch_box: float = 4.0
    patch_point: float = 4.0
    patch_outline: float = 24.0


class DenseHeads(nn.Module):
    """Throw-away heads on the image tokens: what `Dense` holds of every patch."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.ln = layer_norm(dim)
        self.label = nn.Linear(dim, classes + 1)
        self.centre = nn.Linear(dim, 1)
        self.number = nn.Linear(dim, MAX_OBJECTS + 1)
        self.box = nn.Linear(dim, 4)
        self.point = nn.Linear(dim, 2)
        self.outline = nn.Linear(dim, 2 * TOLD)

    def forward(self, tokens: Tensor) -> Dense:
        """Map image tokens [B, P, dim] to logits of labels [B, P, classes + 1], of centres [B, P] and of numbers
        [B, P, MAX_OBJECTS + 1], and to places.
        """
        n = self.ln(tokens)
        return Dense(self.label(n), self.centre(n)[..., 0], self.number(n), self.box(n), self.point(n), self.outline(n))


class Learner(nn.Module):
    """A model under training with its throw-away heads; `forward` gives the parts of the loss."""

    def __init__(self, model: MoondreamModel, classes: int, attention: PackedAttention) -> None:
        super().__init__()
        self.model = model
        self.heads = DenseHeads(model.config.text.dim, classes)
        self.start = nn.Sequential(layer_norm(model.config.text.dim), nn.Linear(model.config.text.dim, 2 * LEAD))
        self.classes, self.attention = classes, attention
        self.class_weight: Tensor
        self.register_buffer("class_weight", torch.tensor([*[1.0] * classes, _BACKGROUND_WEIGHT]))

    def forward(
        self,
        pixels: Tensor,
        labels: Tensor,
        centres: Tensor,
        numbers: Tensor,
        boxes: Tensor,
        points: Tensor,
        outlines: Tensor,
        ids: Tensor,
        values: Tensor,
        weight: Tensor,
        outline: Tensor,
        part: Tensor,
    ) -> dict[str, Tensor]:
        """Return the parts of the loss by the names of `Weights`.

        `pixels` uint8 [B, H, W, 3] are one crop each, or the sheet that local crops are cut from; `labels` to
        `outlines` are `Dense`, and `ids` to `part` are `Rows`, whose `start` the attention was shown.
        """
        images = image_tokens(self.model, pixels)
        bos = self.model.embed(torch.full_like(ids[:, :1], BOS))
        x = torch.cat((bos, images, self._embed(ids, values)), 1)
        hidden = self.model(x, self.attention.positions, self.attention)[:, self.attention.prefix :]
        # Place i answers for place i + 1 of its own question.
        target, value, outline = ids.roll(-1, 1), values.roll(-1, 1), outline.roll(-1, 1)
        weight = weight.roll(-1, 1) * ~self.attention.last
        answers = self._answers(hidden, target, value, weight, outline, part)
        return answers | self._dense(images, Dense(labels, centres, numbers, boxes, points, outlines))

    def _embed(self, ids: Tensor, values: Tensor) -> Tensor:
        """Embed text, and numbers with a little noise, since at inference they come from bins that may be one off.

        Fourier features stay in float32: bfloat16 is too coarse for the cosine of hundreds of radians.
        """
        x = self.model.embed(ids)
        coord = (values[..., 0] + 0.003 * torch.randn_like(values[..., 0])).flatten()
        size = (values * (1 + 0.03 * torch.randn_like(values))).flatten(0, 1)
        with torch.autocast(ids.device.type, enabled=False):
            coords = self.model.embed_coordinates(coord).reshape(x.shape).to(x.dtype)
            sizes = self.model.embed_sizes(size).reshape(x.shape).to(x.dtype)
        x = torch.where((ids == COORD)[..., None], coords, x)
        return torch.where((ids == SIZE)[..., None], sizes, x)

    def _answers(
        self, hidden: Tensor, target: Tensor, value: Tensor, weight: Tensor, outline: Tensor, part: Tensor
    ) -> dict[str, Tensor]:
        logits = self.model.logits(hidden).float()
        token = functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view_as(target)
        config = self.model.config.region
        coord = soft_cross_entropy(self.model.coordinate_logits(hidden), value[..., 0] * config.coord_out_dim)
        octave = (value.clamp(min=2.0**-SIZE_OCTAVES).log2() + SIZE_OCTAVES) / SIZE_OCTAVES
        size = soft_cross_entropy(self.model.size_logits(hidden), octave * (config.size_bins - 1)).sum(-1)
        step = _soft_integer(logits, value[..., 0] * (INTEGERS - 1))
        # The first vertices tell how the object is turned, the others follow from them nearly without the image: as a
        # few numbers among thirty-six the first ones were not learned.
        path = weight * outline
        counted = outline.cumsum(1)
        number = counted - counted.gather(1, self.attention.start)  # Within its own question
        lead = path * (number <= 2 * LEAD)
        said = weight * ~outline
        return {
            **{name: _mean(token, said * (part == index)) for index, name in enumerate(PARTS)},
            "coord": _mean(coord, weight * (target == COORD)),
            "size": _mean(size, weight * (target == SIZE)),
            "path": _mean(step, path - lead),
            "lead": _mean(step, lead),
            "start": _mean(self._start_error(hidden, value[..., 0]), path * (number == 1)),
        }

    def _start_error(self, hidden: Tensor, value: Tensor) -> Tensor:
        """How far an outline's beginning is from what can be read off the state that precedes it, [B, L]."""
        # The second vertex stands behind the L.
        ahead = [shift + (shift >= 2) for shift in range(2 * LEAD)]
        begins = torch.stack([value.roll(-shift, 1) for shift in ahead], -1)
        return (self.start(hidden).float() - begins).abs().mean(-1)

    def _dense(self, images: Tensor, wanted: Dense) -> dict[str, Tensor]:
        told: Dense = self.heads(images)
        label = functional.cross_entropy(
            told.labels.flatten(0, 1).float(), wanted.labels.flatten(), weight=self.class_weight
        )
        # Few of the 676 patches hold a centre.
        weight = torch.where(wanted.centres, 1.0, _BACKGROUND_WEIGHT)
        centre = functional.binary_cross_entropy_with_logits(
            told.centres.float(), wanted.centres.float(), reduction="none"
        )
        some = wanted.labels < self.classes
        # Most of an object's patches count less here, too: else the few large ones would outweigh a crowd.
        number = functional.cross_entropy(
            told.numbers.flatten(0, 1).float(), wanted.numbers.flatten(), reduction="none"
        )
        box, point = (
            _mean((a.float() - b).abs().mean(-1), some)
            for a, b in ((told.boxes, wanted.boxes), (told.points, wanted.points))
        )
        astray = (told.outlines.float() - wanted.outlines).abs()
        drawn = some[..., None] & (wanted.outlines >= 0)
        return {
            "patch_class": label,
            "patch_centre": _mean(centre, weight),
            "patch_number": _mean(number.view_as(weight), weight * some),
            "patch_box": box,
            "patch_point": point,
            "patch_outline": _mean(astray, drawn),
        }


def image_tokens(model: MoondreamModel, pixels: Tensor) -> Tensor:
    """Return what the text decoder reads of scenes: [B, P, dim] for one crop each, or the sheet of a tiling."""
    vision = model.vision
    if pixels.shape[1:3] == (vision.config.crop_size,) * 2:
        features = vision.encode(pixels)
        tokens: Tensor = vision.proj_mlp(torch.cat((features, features), -1))
        return tokens
    crops, tiling = cut_sheet(pixels, vision.config)
    features = vision.encode(crops.flatten(0, 1))
    features = features.view(*crops.shape[:2], *features.shape[1:])  # [n, B, P, D]
    overall, local = features[0], features[1:].transpose(1, 2).flatten(2)  # a scene's features side by side
    pooled = vision.pool(vision.stitch(local, tiling))  # [P, B * D]
    pooled = pooled.view(*pooled.shape[:1], *overall.shape[::2]).transpose(0, 1)
    tokens = vision.proj_mlp(torch.cat((overall, pooled), -1))
    return tokens


def cut_sheet(pixels: Tensor, config: VisionConfig) -> tuple[Tensor, tuple[int, int]]:
    """Cut sheets [B, H, W, 3] as `photonlite.images` cuts an image: crops [1 + r * c, B, C, C, 3] and (r, c).

    Neighbouring crops share their margins; the first crop is the whole sheet, made smaller.
    """
    size, margin = config.crop_size, config.overlap_margin * config.enc_patch_size
    window = size - 2 * margin
    if any((side - 2 * margin) % window for side in pixels.shape[1:3]):
        raise ValueError(f"sheets are {tuple(pixels.shape[1:3])}: no whole number of windows of {window} and margins")
    rows, columns = ((side - 2 * margin) // window for side in pixels.shape[1:3])
    small = functional.interpolate(
        pixels.permute(0, 3, 1, 2).float(), size=(size, size), mode="bicubic", antialias=True, align_corners=False
    )
    whole = small.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
    local = pixels.unfold(1, size, window).unfold(2, size, window)  # [B, r, c, 3, C, C]
    return torch.cat((whole[None], local.permute(1, 2, 0, 4, 5, 3).flatten(0, 1))), (rows, columns)


def pack(questions: Sequence[Questions], parts: Sequence[int], room: int) -> Rows:
    """Lay questions one behind the other in rows of `room` tokens, without their padding; what does not fit is cut.

    A question ends with the last token that counts in the loss. `parts` says which part of the loss each belongs to.
    """
    device = questions[0].ids.device
    widths = [asked.ids.shape[1] for asked in questions]
    owner = torch.cat([torch.full((n,), index, device=device) for index, n in enumerate(widths)])
    place = torch.cat([torch.arange(n, device=device) for n in widths])
    ends = [((asked.weight > 0) * torch.arange(1, n + 1, device=device)).amax(1)
            for asked, n in zip(questions, widths, strict=True)]  # fmt: skip
    length = torch.stack(ends, 1)  # [B, questions]
    begin = length.cumsum(1) - length
    goes = torch.where(place < length[:, owner], begin[:, owner] + place, room).clamp(max=room)
    source = torch.full((len(goes), room + 1), len(owner), device=device)  # one column more, which is padding
    source = source.scatter(1, goes, torch.arange(len(owner), device=device).expand_as(goes))[:, :room]

    def column(*pieces: Tensor) -> Tensor:
        wide = torch.cat(pieces, 1)
        wide = torch.cat((wide, torch.zeros_like(wide[:, :1])), 1)
        return wide.gather(1, source.view(*source.shape, *[1] * (wide.ndim - 2)).expand(-1, -1, *wide.shape[2:]))

    ids, values, weight, outline = (column(*pieces) for pieces in zip(*questions, strict=True))
    part = torch.cat([torch.full((n,), part, device=device) for n, part in zip(widths, parts, strict=True)])
    start = torch.cat((begin[:, owner], begin[:, :1]), 1).gather(1, source)
    alone = torch.arange(room, device=device)
    return Rows(
        ids, values, weight, outline,
        column(part.expand_as(goes)), torch.where(source < len(owner), start, alone),
    )  # fmt: skip


def soft_cross_entropy(logits: Tensor, position: Tensor) -> Tensor:
    """Cross entropy of logits [..., bins] against a Gaussian two bins wide around a fractional bin [...]."""
    bins = torch.arange(logits.shape[-1], device=logits.device)
    target = (-0.5 * ((bins - position[..., None]) / _SOFT_BINS) ** 2).softmax(-1)
    return -(target * logits.float().log_softmax(-1)).sum(-1)


def _soft_integer(logits: Tensor, step: Tensor) -> Tensor:
    """Cross entropy of logits [..., vocabulary] against a Gaussian over integers around `step` [...], 0 to 960."""
    integers = torch.arange(INTEGERS, device=logits.device)
    target = (-0.5 * ((integers - step[..., None]) / _SOFT_STEPS) ** 2).softmax(-1)
    chosen = logits[..., FIRST_INTEGER : FIRST_INTEGER + INTEGERS]
    return logits.logsumexp(-1) - (target * chosen).sum(-1)


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    return (values * weight).sum() / weight.sum().clamp(min=1)
