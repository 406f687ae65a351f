from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from photonlite.config import EngineConfig
from photonlite.engine.build import build
from photonlite.images.crops import ImageCrops
from photonlite.kernels import autotune
from photonlite.kernels.reference.attention import indexable
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.model import MoondreamModel
from photonlite.request import SamplingSettings, Token
from photonlite.runner.step_executor import StepExecutor
from photonlite.sequence import Sequence
from tests.engine.plans import Recorded, Recorder, play
from tests.equality import Asked, CutImage
from tests.tiny import CPU, tiny_config, tiny_model

KINDS = ("detect", "caption", "chance", "point", "query", "chance", "segment", "reasoning")
TILINGS = ((1, 1), (1, 2), (2, 2))
NO_CARD = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = [
    pytest.param(CPU, torch.bfloat16, "auto", id="cpu"),
    pytest.param(torch.device("cuda", 0), torch.bfloat16, "auto", id="card", marks=[pytest.mark.gpu, NO_CARD]),
    pytest.param(torch.device("cuda", 0), torch.float16, "auto", id="card-float16", marks=[pytest.mark.gpu, NO_CARD]),
    pytest.param(torch.device("cuda", 0), torch.bfloat16, "fp8", id="card-fp8-kv", marks=[pytest.mark.gpu, NO_CARD]),
]


class Mute:
    def on_token(self, token: Token) -> None: ...

    def on_finish(self, sequence: Sequence) -> None:
        assert sequence.error is None


def small_config() -> MoondreamConfig:
    """Sizes that every kernel takes."""
    return tiny_config(
        text={"dim": 128, "ff_dim": 256, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2},
        vision={"enc_dim": 32, "enc_ff_dim": 48, "proj_out_dim": 128, "crop_size": 16, "enc_patch_size": 4},
        region={"dim": 128},
    )


def sequences(config: MoondreamConfig, before: int) -> list[Sequence]:
    """Requests of every skill about three images; some are greedy."""
    images = []
    for number, (rows, columns) in enumerate(TILINGS):
        count = 1 if rows * columns == 1 else 1 + rows * columns
        pixels = np.random.default_rng(number).integers(0, 256, (count, 16, 16, 3), np.uint8)
        images.append(CutImage(str(number), ImageCrops(pixels, (rows, columns))))
    found = []
    for number in range(16):
        settings = SamplingSettings(temperature=number % 3 / 2, max_tokens=5 + number, max_objects=4, seed=number)
        request = Asked(KINDS[number % 8], settings, number % 3, number, None).request(config)
        found.append(Sequence(number, request, Mute(), before, images[number % 3], seed=number))
    return found


def record(model: MoondreamModel, device: torch.device, dtype: torch.dtype, config: EngineConfig) -> Recorder:
    """Answer requests that arrive one after the other, so that batches have all sizes."""
    core = build(model, device, dtype, config).core
    core.runner = recorder = Recorder(core.runner)
    for sequence in sequences(model.config, model.shape.prefix_length):
        core.scheduler.prepare(sequence)
        core.submit(sequence)
        for _ in range(3):
            core.tick()
    while not core.idle:
        core.tick()
    recorder.close()
    return recorder


def written(runner: StepExecutor, steps: list[Recorded]) -> Tensor:
    """Keys and values of every position that was written, or copied from where it was; others hold anything."""
    cache = runner._model_runner.cache  # type: ignore[attr-defined]
    known: dict[int, set[int]] = {}  # positions by page
    for step in steps:
        known |= {copy.target: set(known[copy.source]) for copy in step.plan.copies}
        for row in step.plan.rows:
            for position in range(row.start, row.start + row.count):
                page, place = divmod(position, cache.page_size)
                known.setdefault(row.sequence.pages[page], set()).add(place)
        known |= {copy.target: set(known[copy.source]) for copy in step.plan.saves}
    places = [(page, place) for page in sorted(known) for place in sorted(known[page])]
    pages, slots = (torch.tensor(column) for column in zip(*places, strict=True))
    both = torch.stack((indexable(cache.keys), indexable(cache.values))).cpu()
    return both[:, :, pages, slots]


@pytest.mark.long
@pytest.mark.parametrize(("device", "dtype", "kv_dtype"), DEVICES)
def test_pipelined_equals_blocking_bit_for_bit_on_the_same_plans(
    device: torch.device, dtype: torch.dtype, kv_dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each engine measures anew which attention encodes images fastest, and they round differently: take the first.
    monkeypatch.setattr(autotune, "GAIN", 1.0)
    model = tiny_model(small_config()).to(device, dtype)
    config = EngineConfig(kv_cache_bytes=2**22, max_batch=8, graph_sizes=(1, 2, 4, 8), kv_dtype=kv_dtype)  # type: ignore[arg-type]
    recorder = record(model, device, dtype, config)
    steps = recorder.steps

    answers, caches = [], []
    for depth in (1, 2):
        runner = build(model, device, dtype, replace(config, depth=depth)).core.runner
        assert isinstance(runner, StepExecutor)
        answers.append(play(recorder.deeds, runner, depth))
        caches.append(written(runner, steps))
        runner.close()

    # The recorded run is the third: it was pipelined, by the engine itself.
    assert answers[0] == answers[1] == [step.outcomes for step in steps]
    assert torch.equal(*(cache.view(torch.uint8) for cache in caches))
    assert {step.plan.kind for step in steps} == {"encode", "prefill", "decode", "run"}
    assert any(row.assumed for step in steps for row in step.plan.rows)
    assert len({len(step.plan.rows) for step in steps if step.plan.kind == "decode"}) >= 4
    tokens = [token for step in steps for token in step.outcomes if isinstance(token, Token)]
    assert len(tokens) > 100
    assert {len(token.values) for token in tokens} == {0, 1, 2}
