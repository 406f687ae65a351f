"""Vision towers that read an image as a whole: encode launches of the engine, beside products and attention."""

from functools import partial
from itertools import islice

import torch

from bench.bubble.report import table
from bench.gpu.ceilings import Heads, Product, attention_seconds, measure_ceilings, products_seconds
from bench.gpu.clock import WARM_UP
from bench.gpu.command import Bench
from bench.gpu.figures import Figure
from bench.gpu.models import make_images
from bench.gpu.qwen import random_qwen
from bench.gpu.samples import Sample
from bench.shapes import SHAPES
from photonlite.api import VisionModel
from photonlite.config import EngineConfig, ImageLimits
from photonlite.models.qwen.config import QwenConfig, VisionConfig
from photonlite.models.qwen.vision import VisionTower

SIZES = {(640, 480): None, (1024, 1024): 1.35, (1920, 1080): None}
"""Width and height of images, and the aim as a multiple of the floor."""

TINY_SIZES = {(64, 48): 1.35}

NOTES = """\
- Vision tower: one encode launch of the engine, from patches to embeddings, with the mergers of all levels.
- Tower alone: the same without an engine, on random patches, outside of a graph: its launches come from the host.
- Floor: its products and its attention, each timed alone in this run; attention within windows counts as such, those at
  an image's edges as whole ones. Learned positions, rotations, norms and activations count nothing."""


def measure_towers(bench: Bench) -> None:
    """Time the tower of the shape that the command line names on images of several sizes."""
    options = bench.options
    shape = SHAPES[options.shape]
    config = QwenConfig.from_dict(shape.tiny if options.tiny else shape.raw)
    size, side = (1 << 32, 8192) if options.cuda else (1 << 24, 256)
    bench.section("Ceilings", str(measure_ceilings(bench.clock, options.dtype, size=size, side=side)))
    loaded = random_qwen(config, options.where, options.dtype)
    tower = loaded.model.vision
    assert isinstance(tower, VisionTower)
    engine = EngineConfig(max_batch=4, graph_sizes=(1,), kv_cache_bytes=(1 << 32) if options.cuda else (1 << 24))
    rows: list[list[str]] = []
    with VisionModel(loaded, options.where, options.dtype, ImageLimits(), engine) as model:
        for (width, height), most in (TINY_SIZES if options.tiny else SIZES).items():
            bench.attempt(f"{width}x{height}", partial(_measure, bench, model, tower, (width, height), most, rows))


def _measure(
    bench: Bench,
    model: VisionModel,
    tower: VisionTower,
    size: tuple[int, int],
    most: float | None,
    rows: list[list[str]],
) -> None:
    source = make_images(*size)
    for image in islice(source, WARM_UP):
        model.encode_image(image)
    times = (model.encode_image(image).metrics.encode_s for image in islice(source, bench.options.rounds))
    units = tower.images.positions_of(size)
    grid = units[0] * tower.config.merge, units[1] * tower.config.merge
    products, attention, backend = _floor(bench, tower, grid)
    bound = products + attention
    what = f"vision tower, {size[0]}x{size[1]}, {grid[0] * grid[1]} patches"
    figure = Figure(what, Sample.of(times), None if most is None else most * bound, bound=bound)
    bench.figure(figure)
    cells = (_alone(bench, tower, grid), products, attention)
    rows.append([what, *(f"{1e3 * seconds:.2f}" for seconds in cells), backend])
    head = ["what (ms)", "tower alone", "products", "attention", "fastest attention"]
    bench.section("The tower and its ceilings", table(head, rows))


def _alone(bench: Bench, tower: VisionTower, grid: tuple[int, int]) -> float:
    """Time the tower by itself, in seconds."""
    shape = (grid[0] * grid[1], tower.images.patch_bytes)
    patches = torch.randint(0, 256, shape, device=bench.options.where, dtype=torch.uint8)
    with torch.inference_mode():
        return bench.clock.measure(partial(tower.encode, patches, [grid])).median


def _floor(bench: Bench, tower: VisionTower, grid: tuple[int, int]) -> tuple[float, float, str]:
    """Return the seconds of a tower's products and of its attention, and the fastest kernel of the latter."""
    config, dtype = tower.config, bench.options.dtype
    products = products_seconds(bench.clock, tower_products(tower, grid), dtype)
    found = [attention_seconds(bench.clock, heads, dtype) for heads in tower_attention(config, grid)]
    return products, sum(seconds for seconds, _ in found), max(found)[1]


def tower_products(tower: VisionTower, grid: tuple[int, int]) -> list[Product]:
    """List the matrix products of a tower for an image of rows and columns of patches."""
    config = tower.config
    patches, layers, joined = grid[0] * grid[1], config.layers, config.merge**2 * config.dim
    units, levels = patches // config.merge**2, 1 + len(config.deepstack)
    wide = config.ff_dim if config.table else 2 * config.ff_dim  # the older tower's MLP is gated
    return [
        Product(patches, config.patch_dim, config.dim),
        Product(patches, config.dim, 3 * config.dim, layers),
        Product(patches, config.dim, config.dim, layers),
        Product(patches, config.dim, wide, layers),
        Product(patches, config.ff_dim, config.dim, layers),
        Product(units, joined, joined, levels),
        Product(units, joined, config.out_dim, levels),
    ]


def tower_attention(config: VisionConfig, grid: tuple[int, int]) -> list[Heads]:
    """List the attention of a tower, within windows and within the whole image."""
    patches, size = grid[0] * grid[1], config.dim // config.heads
    if not config.window:
        return [Heads(1, config.heads, patches, size, config.layers)]
    window = (config.window * config.merge) ** 2
    full = len(config.full_layers)
    parts = [Heads(max(1, patches // window), config.heads, min(window, patches), size, config.layers - full)]
    return parts + ([Heads(1, config.heads, patches, size, full)] if full else [])
