import itertools
import json
from argparse import Namespace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import photonlite
from bench.nano.scenes.batched.compose import Composer
from bench.nano.scenes.batched.layouts import Difficulty
from bench.nano.training import train
from bench.nano.training.config import Shape, config_dict
from bench.nano.training.loss import Weights
from bench.nano.training.ranks import Ranks
from photonlite.models.layers import MLP
from tests.nano.small import PATCH, SIDE, maker, squares
from tests.tiny import CPU

SCENES = 2  # in a batch, and at most in anything that is composed
CLASSES = 12  # some are absent even where there are ten objects


class FewScenes(Composer):
    """Draws no more than a few scenes, however many are wanted."""

    def __call__(self, batch, difficulty):
        return super().__call__(min(batch, SCENES), difficulty)


@cache
def few_scenes():
    generator = torch.Generator().manual_seed(0)
    sprites = squares(*torch.randint(0, 256, (CLASSES, 3), generator=generator).tolist())
    return FewScenes(sprites, (SIDE, SIDE), SIDE // PATCH, CPU, entries=4, most=10)


def small_config(tokenizer, shape=None):
    raw = config_dict(tokenizer, shape)
    raw["text"] |= {"dim": 32, "ff_dim": 32, "n_layers": 1, "n_heads": 4}
    raw["vision"] |= {"enc_dim": 32, "enc_n_layers": 1, "enc_ff_dim": 32, "enc_n_heads": 4, "crop_size": SIDE}
    raw["vision"] |= {"proj_out_dim": 32, "proj_inner_dim": 32}
    raw["region"] |= {"dim": 32, "coord_feat_dim": 16, "coord_out_dim": 64, "size_feat_dim": 16, "size_out_dim": 128}
    return raw


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A tiny model, few sprites and scenes, and a clock that goes ten seconds further every time it is read."""
    monkeypatch.setattr(train, "config_dict", small_config)
    monkeypatch.setattr(train, "load_sheet", lambda path: (np.zeros(1, np.uint8), np.zeros(1, np.uint8)))
    monkeypatch.setattr(train, "Composer", lambda *_, **__: few_scenes())
    monkeypatch.setattr(train, "QuestionMaker", lambda *_: maker())
    clock = itertools.count(0, 10)
    monkeypatch.setattr(train, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(precision)  # a trainer lowers it for the whole process


@pytest.fixture
def options(tmp_path):
    given = ["--minutes", "1", "--out", str(tmp_path), "--batch", str(SCENES), "--rate", "1e-3", "--device", "cpu"]
    return train.arguments().parse_args([*given, "--eval-minutes", "10", "--ramp", "0.35"])


@pytest.fixture
def trainer_of(options):
    """Makes trainers with some options changed."""

    def make(**values):
        return train.Trainer(Namespace(**(vars(options) | values)), Ranks("cpu"))

    return make


def state(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def noted_difficulties(trainer):
    noted, feed = [], trainer.sources[(1, 1)]
    trainer.sources[(1, 1)] = lambda difficulty: noted.append(difficulty) or feed(difficulty)
    return noted


@pytest.mark.long
def test_a_run_ends_with_a_checkpoint_that_the_package_loads(trainer_of, options, monkeypatch):
    trainer = trainer_of()
    before = state(trainer.model)
    monkeypatch.setattr(train, "_AGREE_EVERY", 1)
    noted = noted_difficulties(trainer)
    trainer.run()

    # The curriculum follows the clock; the first batch only warms up.
    assert noted == [Difficulty(), *(Difficulty.at(sixths / 6) for sixths in range(6))]
    assert trainer.steps == 6
    assert all(bool(value.isfinite().all()) for value in trainer.model.state_dict().values())
    assert all(not torch.equal(value, before[name]) for name, value in trainer.model.named_parameters())
    last = json.loads((options.out / "log.jsonl").read_text().splitlines()[-1])
    assert {"step", "minutes", "scenes", "f1", "precision", "recall", "iou", "none"} <= set(last)
    assert last["scenes"] == 6 * SCENES
    with Image.open(options.out / "samples.jpg") as samples:
        assert samples.size == (6 * SIDE, 4 * SIDE)

    saved = load_file(options.out / "model.safetensors")
    assert {value.dtype for value in saved.values()} == {torch.float16}
    for name, value in trainer.average.state_dict().items():
        assert torch.equal(saved[f"model.{name}"], value.half())
    image = np.zeros((120, 200, 3), np.uint8)
    with photonlite.load(options.out, device="cpu", dtype="float32") as model:
        assert model.skills == ("caption", "query", "detect", "point", "segment")
        assert len(model.detect(image, "banana", settings={"max_objects": 3})["objects"]) <= 3
        assert isinstance(model.caption(image, "short", settings={"max_tokens": 5})["caption"], str)
        answer = model.query(image, "what is this?", spatial_refs=[(0.5, 0.5)], settings={"max_tokens": 5})
        assert isinstance(answer["answer"], str)


@pytest.mark.long
def test_evaluations_come_in_time(trainer_of, monkeypatch):
    trainer = trainer_of(eval_minutes=0.3)
    evaluated = []
    monkeypatch.setattr(train, "_AGREE_EVERY", 1)
    monkeypatch.setattr(trainer, "_save_samples", lambda: None)
    monkeypatch.setattr(trainer, "_step", lambda *arguments: setattr(trainer, "steps", trainer.steps + 1) or {})
    monkeypatch.setattr(trainer, "_evaluate", lambda: evaluated.append(trainer.steps))
    trainer.run()
    assert trainer.steps == 6
    assert evaluated == [2, 4, 6, 6]


def test_the_learning_rate_warms_up_and_ends_near_nothing(options):
    trainer = train.Trainer.__new__(train.Trainer)  # without its model and its scenes
    trainer.options = options
    warming = [trainer._rate(0.0, step) for step in (0, 10, 100, 399, 1000)]
    assert warming == pytest.approx([1e-3 / 400, 1e-3 * 11 / 400, 1e-3 * 101 / 400, 1e-3, 1e-3])
    cooling = [trainer._rate(progress, 10_000) for progress in np.linspace(0, 1, 21)]
    assert cooling == sorted(cooling, reverse=True)
    assert cooling[10] == pytest.approx(0.5e-3, rel=0.02)
    assert trainer._rate(1.0, 10_000) == pytest.approx(1e-5)
    assert trainer._rate(1.2, 10_000) == pytest.approx(1e-5)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_every_weight_is_trained_once_at_the_rate_given(trainer_of, optimizer):
    trainer = trainer_of(optimizer=optimizer)
    assert len(trainer.optimizers) == (2 if optimizer == "muon" else 1)
    groups = [group for one in trainer.optimizers for group in one.param_groups]
    trained = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(trained) == sorted(id(parameter) for parameter in trainer.learner.parameters())
    assert all(parameter.ndim >= 2 or group["weight_decay"] == 0 for group in groups for parameter in group["params"])

    before = state(trainer.learner)
    while not (parts := trainer._step(Difficulty(), 1e-4))["start"]:  # two scenes may be asked for no outline
        pass
    assert all(float(group["lr"]) == pytest.approx(1e-4) for group in groups)
    assert set(parts) == set(vars(Weights()))
    assert all(bool(value.isfinite()) for value in parts.values())
    for name, value in trainer.learner.named_parameters():
        moved = float((value - before[name]).detach().abs().max())
        assert 0 < moved < 1e-3, name


@pytest.mark.long
def test_a_step_learns_the_batch_it_is_shown(trainer_of):
    trainer = trainer_of(rate=3e-3)
    batch = trainer.sources[(1, 1)](Difficulty())
    trainer.sources[(1, 1)] = lambda difficulty: batch
    first = trainer._step(Difficulty(), 3e-3)
    for _ in range(9):
        last = trainer._step(Difficulty(), 3e-3)
    assert float(last["decision"]) < float(first["decision"]) - 1
    assert float(last["text"]) < float(first["text"]) - 1
    assert float(last["patch_class"]) < float(first["patch_class"])


@pytest.mark.long
def test_the_average_forgets_the_random_start_soon(trainer_of):
    trainer = trainer_of()
    start = state(trainer.model)
    trainer._step(Difficulty(), 1e-3)
    for name, value in trainer.average.named_parameters():
        expected = torch.lerp(start[name], trainer.model.get_parameter(name).detach(), 0.9)
        assert torch.allclose(value, expected, atol=1e-6)

    trainer.steps = 10**6
    kept = state(trainer.average)
    trainer._step(Difficulty(), 1e-3)
    for name, value in trainer.average.named_parameters():
        expected = torch.lerp(kept[name], trainer.model.get_parameter(name).detach(), 5e-4)
        assert torch.allclose(value, expected, atol=1e-7)


@pytest.mark.long
def test_a_run_that_was_cut_short_goes_on_at_its_minute(trainer_of, options, monkeypatch):
    monkeypatch.setattr(train, "_AGREE_EVERY", 1)
    monkeypatch.setattr(train, "f1", lambda *_: {"f1": 0.0})
    first = trainer_of(minutes=0.5)
    first.run()
    assert (first.steps, first.minutes) == (3, 0.5)

    second = trainer_of(resume=True)
    for module, name in ((second.model, "raw"), (second.average, "model")):
        saved = load_file(options.out / f"{name}.safetensors")
        for key, value in module.state_dict().items():
            assert value.dtype == torch.float32
            assert torch.equal(value, saved[f"model.{key}"].float())
    noted = noted_difficulties(second)
    assert not torch.equal(first.sources[(1, 1)](Difficulty())[0], second.sources[(1, 1)](Difficulty())[0])
    noted.clear()
    second.run()
    assert noted[1:] == [Difficulty.at(sixths / 6) for sixths in (3, 4, 5)]
    assert (second.steps, second.scenes) == (6, 6 * SCENES)
    lines = [json.loads(line) for line in (options.out / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 6]


@pytest.mark.long
def test_a_run_begins_with_weights_of_another_crop_and_continues_by_the_same_command(trainer_of, options, monkeypatch):
    monkeypatch.setattr(train, "_AGREE_EVERY", 1)
    monkeypatch.setattr(train, "f1", lambda *_: {"f1": 0.0})
    weights = {f"model.{name}": value.half() for name, value in state(trainer_of().average).items()}
    shared = weights["model.text.wte"][100].clone()
    weights["model.vision.pos_emb"] = torch.ones(1, 64, 32).half()
    weights["model.text.wte"] = weights["model.text.wte"][:-5].clone()
    save_file(weights, options.out / "start.safetensors")
    command = {"start": options.out / "start.safetensors", "resume": True}
    begun = trainer_of(**command, minutes=0.5)
    assert torch.allclose(begun.model.vision.pos_emb, torch.ones(1, (SIDE // PATCH) ** 2, 32))
    assert torch.equal(begun.average.text.wte[100], shared.float())
    begun.run()
    command["start"].unlink()
    assert trainer_of(**command).steps == begun.steps > 0


def test_positions_are_interpolated_between_patches():
    across = torch.linspace(0, 1, 24).expand(24, 24)
    made = train.resized_positions(torch.stack((across, across.T), -1).view(1, 576, 2), 676).view(26, 26, 2)
    assert bool((made[:, 1:, 0] > made[:, :-1, 0]).all())
    assert torch.allclose(made[..., 0], made[..., 1].T, atol=1e-6)
    assert made[3, :, 0].tolist() == pytest.approx(torch.linspace(0, 1, 26).tolist(), abs=0.03)
    table = torch.rand(1, 16, 4)
    assert train.resized_positions(table, 16) is table


def test_a_wider_model_begins_as_the_same_function(tmp_path):
    torch.manual_seed(0)
    narrow, wide = (torch.nn.ModuleDict({"mlp": MLP(8, width, 8)}) for width in (12, 20))
    save_file({f"model.{name}": 5 * value for name, value in state(narrow).items()}, tmp_path / "narrow.safetensors")
    for module in (narrow, wide):
        train.load_weights(module, tmp_path / "narrow.safetensors")
    x = torch.randn(6, 8)
    assert torch.allclose(wide["mlp"](x), narrow["mlp"](x), rtol=1e-5, atol=1e-5)
    # What is new in front of them is as large as what there was, so that it learns as fast.
    fc1 = wide["mlp"].fc1.weight.detach()
    assert fc1[12:].std() == pytest.approx(float(fc1[:12].std()), rel=0.01)


def test_weights_of_another_shape_are_no_start(trainer_of, tmp_path):
    for name in ("raw", "model"):
        save_file({"model.text.wte": torch.zeros(3, 3)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(RuntimeError, match="size mismatch"):
        trainer_of(resume=True)


@pytest.mark.long
def test_ranks_share_weights_and_draw_scenes_of_their_own(options):
    trainers = []
    for rank in range(2):
        ranks = Ranks("cpu")
        ranks.rank = rank
        trainers.append(train.Trainer(options, ranks))
    first, second = trainers
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name])
    assert torch.equal(first.held_out.pixels, second.held_out.pixels)
    shown = []
    for rank, trainer in enumerate(trainers):
        trainer._seed(1 + rank)
        shown.append(trainer.sources[(1, 1)](Difficulty())[0])
    assert not torch.equal(*shown)


@pytest.mark.long
def test_only_the_first_rank_writes(trainer_of, options, monkeypatch):
    monkeypatch.setattr(train, "_AGREE_EVERY", 1)
    trainer = trainer_of(minutes=0.2)
    trainer.ranks.rank = 1
    trainer.run()
    assert not [*options.out.iterdir()]


def test_fields_are_changed_by_name():
    assert train.changed(Shape(), ["text_layers=6", "crop=256"]) == Shape(text_layers=6, crop=256)
    assert train.changed(Weights(), ["text=3"]).text == 3.0
    with pytest.raises(ValueError, match="'depth' is none of"):
        train.changed(Shape(), ["depth=3"])
    with pytest.raises(ValueError, match="invalid literal"):
        train.changed(Shape(), ["crop=wide"])


@pytest.mark.long
def test_all_runs_are_judged_on_the_same_scenes(trainer_of):
    first, second = (trainer_of(seed=seed) for seed in (1, 2))
    assert torch.equal(first.held_out.pixels, second.held_out.pixels)
    assert torch.equal(first.held_out.labels, second.held_out.labels)
    # What they learn from differs, from those scenes and from one another's.
    shown = []
    for trainer in (first, second):
        trainer._seed(1)
        shown.append(trainer.sources[(1, 1)](Difficulty())[0])
    assert not torch.equal(shown[0], shown[1])
    assert not torch.equal(shown[0], first.held_out.pixels[: len(shown[0])])


def test_the_command_line_says_what_to_train(tmp_path, monkeypatch):
    made = []
    trainer = SimpleNamespace(run=lambda: None)
    monkeypatch.setattr(train, "Trainer", lambda options, ranks: made.append(options) or trainer)
    out = tmp_path / "new" / "run"
    monkeypatch.setattr("sys.argv", ["train", "--minutes", "2", "--out", str(out), "--device", "cpu"])
    train.main()
    assert out.is_dir()
    assert (made[0].minutes, made[0].device, made[0].resume) == (2.0, "cpu", False)
