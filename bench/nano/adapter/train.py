"""Train a LoRA adapter of the shipped checkpoint, and write it as PEFT does.

```
python -m bench.nano.adapter --minutes 20 --threads 2          # writes assets/nano-shelf
python -m bench.nano.adapter --minutes 20 --initial assets/nano-shelf  # adapts it to new weights of the checkpoint
python -m bench.nano.adapter --device cuda --minutes 1
```

Linear layers of the text blocks, and of the later half of the vision blocks, get low-rank terms; all other weights stay
as they are, and the blocks before need no backward pass. The loss is that of `bench.nano.training` on boxes: whether
another object follows, then soft targets for the bins of its numbers.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from bench.nano import ROOT
from bench.nano.adapter.data import IGNORED, Packed, SceneMaker, octaves
from bench.nano.training.loss import image_tokens, soft_cross_entropy
from photonlite.models.checkpoint import load_checkpoint
from photonlite.models.layers import MaskedAttention
from photonlite.models.moondream.model import SIZE_OCTAVES, MoondreamModel

OUT = ROOT / "assets" / "nano-shelf"
RANK, ALPHA = 16, 32
TARGETS = ("qkv", "proj", "fc1", "fc2")
_DECIDES = (0, 5)  # ids that end an answer, and that begin an object
_WARM_UP = 0.05  # of the time


class LowRank(nn.Module):
    """A linear layer with an adapter, ``W x + s B A x``; B is 0 at first."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        self.a = nn.Parameter(torch.empty(RANK, linear.in_features, device=linear.weight.device))
        self.b = nn.Parameter(torch.zeros(linear.out_features, RANK, device=linear.weight.device))
        nn.init.kaiming_uniform_(self.a, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        low = functional.linear(functional.linear(x, self.a), self.b)
        return self.linear(x) + ALPHA / RANK * low


def add_adapter(model: MoondreamModel) -> dict[str, LowRank]:
    """Add a low-rank term to linear layers of the blocks that learn; returns the terms by the layers' names."""
    frozen = tuple(f"vision.blocks.{index}." for index in range(model.config.vision.enc_n_layers // 2))
    found = {}
    for name, layer in list(model.named_modules()):
        parent, _, last = name.rpartition(".")
        if ".blocks." in name and last in TARGETS and not name.startswith(frozen) and isinstance(layer, nn.Linear):
            found[name] = LowRank(layer)
            setattr(model.get_submodule(parent), last, found[name])
    return found


def loss_of(model: MoondreamModel, packed: Packed) -> Tensor:
    """Return the mean loss of decisions, coordinates and sizes."""
    images = image_tokens(model, packed.crops)
    bos = model.embed(torch.zeros_like(packed.ids[:, :1]))
    x = torch.cat((bos, images, _embed(model, packed)), 1)
    hidden = model.forward(x, packed.positions, MaskedAttention(packed.mask))[:, 1 + images.shape[1] :]
    decided, placed, sized = packed.goes_on != IGNORED, packed.coordinate != IGNORED, packed.size[..., 0] != IGNORED
    logits = model.logits(hidden[decided])[:, list(_DECIDES)]
    config = model.config.region
    bins = packed.coordinate[placed] * config.coord_out_dim
    steps = octaves(packed.size[sized], SIZE_OCTAVES) * (config.size_bins - 1)
    return (
        functional.cross_entropy(logits, packed.goes_on[decided].long())
        + soft_cross_entropy(model.coordinate_logits(hidden[placed]), bins).mean()
        + soft_cross_entropy(model.size_logits(hidden[sized]), steps).mean()
    )


def _embed(model: MoondreamModel, packed: Packed) -> Tensor:
    """Embed words and numbers, the latter with a little noise: at inference they come from bins that may be one off."""
    values = packed.values
    number, size = values[..., 0] != IGNORED, values[..., 1] != IGNORED
    x = model.embed(packed.ids).clone()
    coordinate = values[..., 0][number & ~size]
    x[number & ~size] = model.embed_coordinates(coordinate + 0.003 * torch.randn_like(coordinate))
    x[size] = model.embed_sizes(values[size] * (1 + 0.03 * torch.randn_like(values[size])))
    return x


def train(
    model: MoondreamModel,
    maker: SceneMaker,
    save: Callable[[], None],
    *,
    minutes: float,
    batch: int,
    rate: float,
    workers: int = 1,
) -> None:
    """Train the parameters that have gradients; in each twentieth of the time print the mean loss, and save."""
    device = model.text.wte.device
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0, betas=(0.9, 0.98))
    begun, step, shown, losses = time.monotonic(), 0, 0, []
    with ThreadPoolExecutor(workers) as pool:

        def draw(number: int) -> Packed:
            return maker.batch(range(number * batch, (number + 1) * batch))

        ahead = [pool.submit(draw, number) for number in range(2 * workers)]
        while (done := (time.monotonic() - begun) / (60 * minutes)) < 1:
            packed = ahead.pop(0).result()
            ahead.append(pool.submit(draw, step + 2 * workers))
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, done / _WARM_UP) * (1 - done)
            moved = Packed(**{name: value.to(device) for name, value in vars(packed).items()})
            loss = loss_of(model, moved)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            step += 1
            losses.append(loss.item())
            if int(done * 20) > shown:
                shown = int(done * 20)
                print(f"{done:4.0%}  {step * batch} scenes  loss {sum(losses) / len(losses):.3f}", flush=True)
                losses = []
                save()
        for future in ahead:
            future.cancel()


def _stored_parts(terms: dict[str, LowRank]) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters by their names in PEFT's file."""
    for name, term in terms.items():
        for part, value in (("lora_A", term.a), ("lora_B", term.b)):
            yield f"base_model.model.{name}.{part}.weight", value


def read_adapter(terms: dict[str, LowRank], folder: Path) -> None:
    """Set the terms to those of an adapter that `save_adapter` wrote; where layers are wider by now, the rest is 0."""
    stored = load_file(folder / "adapter_model.safetensors")
    with torch.no_grad():
        for name, value in _stored_parts(terms):
            rows, columns = stored[name].shape
            value.zero_()[:rows, :columns] = stored[name]


def save_adapter(terms: dict[str, LowRank], out: Path) -> None:
    """Write adapter_config.json and adapter_model.safetensors, in half precision."""
    tensors = {name: value.detach().half().cpu().contiguous() for name, value in _stored_parts(terms)}
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": "photonlite nano",
        "r": RANK,
        "lora_alpha": ALPHA,
        "target_modules": list(TARGETS),
        "bias": "none",
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    save_file(tensors, out / "adapter_model.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a LoRA adapter of the shipped checkpoint for new objects.")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--initial", type=Path, help="folder of an adapter to begin with")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    loaded = load_checkpoint(None, device=torch.device(args.device), dtype=torch.float32)
    model = loaded.model
    if not isinstance(model, MoondreamModel):
        raise TypeError(f"the shipped checkpoint is a {type(model).__name__}")
    terms = add_adapter(model)
    if args.initial:
        read_adapter(terms, args.initial)
    maker = SceneMaker(loaded.prompts, model.crop_spec, model.config.prefix_length)
    save = partial(save_adapter, terms, args.out)
    train(model, maker, save, minutes=args.minutes, batch=args.batch, rate=args.rate)
    save()
