"""Detection score while training: batched greedy decoding by full recomputation, F1 on composed scenes."""

import torch
from torch import Tensor

from bench.nano.questions.layout import BOS, COORD
from bench.nano.questions.maker import QuestionMaker
from bench.nano.questions.mix import LENGTHS
from bench.nano.scenes.batched.compose import Scenes
from bench.nano.scenes.batched.layouts import CROWDS, MAX_OBJECTS
from bench.nano.training.loss import image_tokens
from photonlite.models.layers import MaskedAttention
from photonlite.models.moondream.model import MoondreamModel, coord_from_bin, size_from_bin

_LENGTH = LENGTHS["objects"]


class Prefix:
    """Keys and values of BOS and image, computed once; later calls attend to them and, causally, to themselves."""

    def __init__(self, prefix: int, length: int, device: torch.device) -> None:
        self.prefix, self.cache = prefix, dict[int, tuple[Tensor, Tensor]]()
        self.positions = torch.arange(prefix, prefix + length, device=device)
        self.mask = torch.ones(length, prefix + length, dtype=torch.bool, device=device).tril(prefix)

    def remember(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend among the image and keep its keys and values."""
        self.cache[layer] = (k, v)
        return MaskedAttention()(layer, q, k, v)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend from questions of the full length."""
        kept_k, kept_v = self.cache[layer]
        return MaskedAttention(self.mask)(layer, q, torch.cat((kept_k, k), 1), torch.cat((kept_v, v), 1))


@torch.inference_mode()
def detect(
    model: MoondreamModel, pixels: Tensor, prompt: Tensor, length: Tensor, limit: int = MAX_OBJECTS
) -> tuple[Tensor, Tensor]:
    """Return boxes (centre, size) [B, limit, 4] and how many of them count [B], decoded greedily for images
    [B, S, S, 3] and padded prompts of `length` ids [B].
    """
    device, batch = pixels.device, len(pixels)
    images = image_tokens(model, pixels)
    prefix = Prefix(model.config.prefix_length, _LENGTH, device)
    bos = model.embed(torch.full((batch, 1), BOS, device=device))
    model(torch.cat((bos, images), 1), torch.arange(prefix.prefix, device=device), prefix.remember)
    x = model.embed(prompt)
    rows, at = torch.arange(batch, device=device), length - 1
    alive = torch.ones(batch, dtype=torch.bool, device=device)
    count = torch.zeros(batch, dtype=torch.long, device=device)
    boxes = torch.zeros(batch, limit, 4, device=device)
    config = model.config.region

    def hidden() -> Tensor:
        out: Tensor = model(x, prefix.positions, prefix)
        return out[rows, at.clamp(max=_LENGTH - 1)]

    def put(embedding: Tensor) -> None:
        nonlocal at
        at = (at + 1).clamp(max=_LENGTH - 1)
        x[rows, at] = embedding.to(x.dtype)

    for n in range(limit):
        h = hidden()
        logits = model.logits(h)
        alive = alive & (logits[:, COORD] >= logits[:, BOS])
        if not bool(alive.any()):
            break
        for axis in range(2):
            if axis:
                h = hidden()
            value = coord_from_bin(model.coordinate_logits(h).argmax(-1), config.coord_out_dim)
            boxes[:, n, axis] = value
            put(model.embed_coordinates(value))
        size = size_from_bin(model.size_logits(hidden()).argmax(-1), config.size_bins)
        boxes[:, n, 2:] = size
        put(model.embed_sizes(size))
        count += alive
    return boxes, count


@torch.inference_mode()
def f1(model: MoondreamModel, scenes: Scenes, maker: QuestionMaker, chunk: int = 128) -> dict[str, float]:
    """Return F1, precision, recall and mean IoU of matches over all kinds of all scenes, F1 of each of `CROWDS` under
    "f1_10" and so on, and under "none" the share of absent kinds, one a scene, that are answered with nothing.
    """
    asked, truth = _cases(scenes, len(maker.objects))
    totals = {last: torch.zeros(5) for last, _ in CROWDS}  # matched, answered, true, IoU, absent answered with none
    for start in range(0, len(asked), chunk):
        part = asked[start : start + chunk]
        scene = torch.tensor([s for s, _ in part], device=scenes.pixels.device)
        kind = torch.tensor([k for _, k in part], device=scenes.pixels.device)
        prompt, length = _prompts(maker, kind)
        boxes, count = detect(model, scenes.pixels[scene], prompt, length)
        for i, (s, k) in enumerate(part):
            answered, true = boxes[i, : int(count[i])].cpu(), truth[s].get(k, torch.zeros(0, 4))
            matched, iou = _match(answered, true)
            none = float(not len(answered) and not len(true))
            crowd = next(last for last, _ in CROWDS if sum(map(len, truth[s].values())) <= last)
            totals[crowd] += torch.tensor([matched, len(answered), len(true), iou, none])
    matched, answered_n, true_n, iou, none = torch.stack([*totals.values()]).sum(0).tolist()
    return {
        "f1": _f1(matched, answered_n, true_n),
        "precision": matched / max(1.0, answered_n),
        "recall": matched / max(1.0, true_n),
        "iou": iou / max(1.0, matched),
        "none": none / len(scenes.pixels),
        **{f"f1_{last}": _f1(*crowd[:3].tolist()) for last, crowd in totals.items()},
    }


def _f1(matched: float, answered: float, true: float) -> float:
    return 2 * matched / max(1.0, answered + true)


def _cases(scenes: Scenes, classes: int) -> tuple[list[tuple[int, int]], list[dict[int, Tensor]]]:
    truth: list[dict[int, Tensor]] = []
    asked: list[tuple[int, int]] = []
    for s, (labels, boxes) in enumerate(zip(scenes.labels.cpu(), scenes.boxes.cpu(), strict=True)):
        kinds = {int(k) for k in labels if k >= 0}
        truth.append({k: boxes[labels == k] for k in kinds})
        absent = next(k for k in ((s * 37 + i) % classes for i in range(classes)) if k not in kinds)
        asked += [(s, k) for k in (*sorted(kinds), absent)]
    # A chunk takes as many steps as its longest answer.
    asked.sort(key=lambda case: len(truth[case[0]].get(case[1], ())))
    return asked, truth


def _prompts(maker: QuestionMaker, kind: Tensor) -> tuple[Tensor, Tensor]:
    """Return padded prompts with the name of each kind, and their lengths."""
    frame = maker.prompts["detect"]
    names = [maker.encode_prompt(" " + maker.objects[k].name) for k in kind.tolist()]
    rows = [[*frame["prefix"], *name, *frame["suffix"]] for name in names]
    length = torch.tensor([len(row) for row in rows], device=kind.device)
    return torch.tensor([[*row, *[BOS] * (_LENGTH - len(row))] for row in rows], device=kind.device), length


def _match(answered: Tensor, true: Tensor) -> tuple[int, float]:
    """Match greedily by IoU; return the number of matches at 0.5 and the sum of their IoU."""
    if not len(answered) or not len(true):
        return 0, 0.0
    a, b = answered[:, None], true[None]
    low = torch.maximum(a[..., :2] - a[..., 2:] / 2, b[..., :2] - b[..., 2:] / 2)
    high = torch.minimum(a[..., :2] + a[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2)
    inter = (high - low).clamp(min=0).prod(-1)
    iou = inter / (a[..., 2:].prod(-1) + b[..., 2:].prod(-1) - inter)
    matched, total = 0, 0.0
    while iou.numel() and float(iou.max()) >= 0.5:
        best = int(iou.argmax())
        total += float(iou.max())
        matched += 1
        iou[best // iou.shape[1]] = 0
        iou[:, best % iou.shape[1]] = 0
    return matched, total
