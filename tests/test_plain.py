import numpy as np
import pytest
import torch
from torch import Tensor

from photonlite.images.crops import ImageCrops
from photonlite.models.layers import MaskedAttention
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.request import Request, SamplingSettings, Token
from photonlite.skills import caption, detect, point, query, segment
from tests.plain import PlainEngine
from tests.tiny import CPU, tiny_config, tiny_model, tiny_prompts

BOS, END, ANSWER, COORD, SIZE = 0, 0, 3, 5, 6
NANO, MOONDREAM2 = tiny_config(), tiny_config("moondream2")
SEEDS = range(4)


def crops(seed: int = 0) -> ImageCrops:
    pixels = np.random.default_rng(seed).integers(0, 256, (7, 20, 20, 3), dtype=np.uint8)
    return ImageCrops(pixels, (2, 3))


def engine(config: MoondreamConfig, seed: int = 0) -> PlainEngine:
    return PlainEngine(tiny_model(config, seed), CPU, torch.float32)


class Loops:
    """The loops of the reference without cache and grammar: the whole sequence at every step."""

    def __init__(self, config: MoondreamConfig, seed: int, request: Request, image: ImageCrops) -> None:
        self.config, self.model = config, tiny_model(config, seed)
        image = self.model.encode_image(torch.from_numpy(image.pixels), image.tiling)
        self.prefix = 1 + len(image)
        self.x = torch.cat((self.model.embed(torch.tensor([BOS])), image))
        for token in request.prompt:
            self.word(token.id)

    def word(self, token_id: int) -> None:
        self.push(self.model.embed(torch.tensor([token_id])))

    def push(self, embedding: Tensor) -> None:
        self.x = torch.cat((self.x, embedding))

    def hidden(self) -> Tensor:
        length = len(self.x)
        mask = torch.ones(length, length).tril().bool()
        mask[: self.prefix, : self.prefix] = True
        return self.model(self.x[None], torch.arange(length), MaskedAttention(mask))[0, -1]

    def coordinate(self) -> float:
        logits = self.model.coordinate_logits(self.hidden())
        value = logits.argmax() / len(logits)
        self.push(self.model.embed_coordinates(value[None]))
        return float(value)

    def size(self) -> tuple[float, float]:
        logits = self.model.size_logits(self.hidden())
        value = torch.exp2(logits.argmax(-1) / (logits.shape[-1] - 1) * 10 - 10)
        self.push(self.model.embed_sizes(value[None]))
        return float(value[0]), float(value[1])

    def continues(self) -> bool:
        logits = self.model.logits(self.hidden())
        if self.config.family.name == "moondream2":
            return int(logits.argmax()) != END
        return bool(logits[COORD] >= logits[END])

    def objects(self, limit: int, with_size: bool) -> list[tuple[float, ...]]:
        found: list[tuple[float, ...]] = []
        while len(found) < limit and self.continues():
            found.append((self.coordinate(), self.coordinate(), *(self.size() if with_size else ())))
        return found

    def words(self, limit: int) -> list[int]:
        ids: list[int] = []
        while len(ids) < limit:
            logits = self.model.logits(self.hidden())
            if ids and self.config.family.name == "moondream2":
                logits[ANSWER] = -torch.inf
            ids.append(int(logits.argmax()))
            if ids[-1] == END:
                break
            self.word(ids[-1])
        return ids


def flat(tokens: tuple[Token, ...]) -> list[float]:
    return [value for token in tokens for value in token.values]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("config", [NANO, MOONDREAM2], ids=["nano", "moondream2"])
@pytest.mark.parametrize("with_size", [True, False])
@torch.inference_mode()
def test_objects_equal_the_reference_loop(config: MoondreamConfig, seed: int, with_size: bool) -> None:
    build = detect.build if with_size else point.build
    request = build(tiny_prompts(config), "mug", settings=SamplingSettings(max_objects=4))

    done = engine(config, seed).generate(request, crops(seed)).complete()
    wanted = Loops(config, seed, request, crops(seed)).objects(4, with_size)

    assert flat(done.tokens) == pytest.approx([value for values in wanted for value in values], abs=1e-5)
    assert done.finish_reason == ("max_objects" if len(wanted) == 4 else "stop")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("config", [NANO, MOONDREAM2], ids=["nano", "moondream2"])
@torch.inference_mode()
def test_text_equals_the_reference_loop(config: MoondreamConfig, seed: int) -> None:
    request = caption.build(tiny_prompts(config), "short", settings=SamplingSettings(max_tokens=12))

    done = engine(config, seed).generate(request, crops(seed)).complete()

    assert [token.id for token in done.tokens] == Loops(config, seed, request, crops(seed)).words(12)


def biased(config: MoondreamConfig, **bias: float) -> PlainEngine:
    """A model that prefers some ids; the name says which."""
    model = tiny_model(config)
    for name, value in bias.items():
        model.text.lm_head.bias[{"end": END, "answer": ANSWER, "coordinate": COORD, "word": 50}[name]] += value
    return PlainEngine(model, CPU, torch.float32)


def ask_detect(config: MoondreamConfig = NANO, **settings: float) -> Request:
    return detect.build(tiny_prompts(config), "mug", settings=SamplingSettings.from_dict(settings))


def test_model_families_end_a_list_by_different_rules() -> None:
    # The most probable id is a word. Moondream 2 goes on with it; the others compare end and coordinate alone.
    lists = {}
    for name, config in (("nano", NANO), ("moondream2", MOONDREAM2)):
        done = biased(config, word=200, end=100).generate(ask_detect(config, max_objects=2), crops()).complete()
        lists[name] = (done.finish_reason, len(done.tokens))

    assert lists == {"nano": ("stop", 1), "moondream2": ("max_objects", 6)}


def test_the_context_length_ends_a_list() -> None:
    config = tiny_config(text={"max_context": 26 + 8 + 3})
    request = ask_detect(config)
    assert len(request.prompt) == 8

    done = biased(config, coordinate=200).generate(request, crops()).complete()

    assert done.finish_reason == "length"
    assert len(done.tokens) == 4
    assert len(detect.finish(request, done)["objects"]) == 1


def test_reasoning_decodes_coordinates_and_then_the_answer() -> None:
    prompts = tiny_prompts(NANO)
    settings = SamplingSettings(max_tokens=3)
    request = query.build(
        prompts, query.read_question(prompts, "why?", images=1, reasoning=True, refs=None, settings=settings)
    )

    done = biased(NANO, coordinate=200).generate(request, crops()).complete()

    # Three coordinates, the answer id by force, and three words: outside reasoning the id is only a word.
    assert [token.id for token in done.tokens] == [COORD] * 3 + [ANSWER] + [COORD] * 3
    assert [len(token.values) for token in done.tokens] == [1, 1, 1, 0, 0, 0, 0]
    assert query.finish(request, prompts, done)["reasoning"]["grounding"][0]["points"] == [
        [done.tokens[0].values[0], done.tokens[1].values[0]]
    ]


@torch.inference_mode()
def test_a_coordinate_in_reasoning_is_fed_as_a_coordinate() -> None:
    settings = SamplingSettings(max_tokens=2)
    request = query.build(
        tiny_prompts(NANO),
        query.read_question(tiny_prompts(NANO), "why?", images=1, reasoning=True, refs=None, settings=settings),
    )
    model = tiny_model(NANO)
    model.text.lm_head.bias[COORD] += 200

    done = PlainEngine(model, CPU, torch.float32).generate(request, crops()).complete()
    loops = Loops(NANO, 0, request, crops())

    assert flat(done.tokens) == pytest.approx([loops.coordinate(), loops.coordinate()], abs=1e-6)


def test_segment_gives_a_path_of_its_grammar() -> None:
    prompts = tiny_prompts(NANO)
    request = segment.build(prompts, "mug", settings=SamplingSettings(max_tokens=40))

    done = biased(NANO, coordinate=50).generate(request, crops()).complete()

    ids = [token.id for token in done.tokens]
    assert ids[:3] == [COORD, COORD, SIZE]
    assert prompts.path_ids.commands[ids[3]] in "Mm"
    known = {*prompts.path_ids.commands, *prompts.path_ids.integers, *prompts.path_ids.minus, END}
    assert set(ids[3:]) <= known


def test_sampling_repeats_with_a_seed() -> None:
    def run(seed: int) -> list[float]:
        request = ask_detect(temperature=3.0, max_objects=3, seed=seed)
        return flat(biased(NANO, coordinate=200).generate(request, crops()).complete().tokens)

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_a_prompt_without_an_image_starts_with_bos() -> None:
    request = query.build(
        tiny_prompts(NANO),
        query.read_question(
            tiny_prompts(NANO),
            "why?",
            images=0,
            reasoning=False,
            refs=None,
            settings=SamplingSettings(max_tokens=5),
        ),
    )
    done = engine(NANO).generate(request).complete()

    model = tiny_model(NANO)
    ids = [BOS, *(token.id for token in request.prompt)]
    mask = MaskedAttention(torch.ones(len(ids), len(ids)).tril().bool())
    hidden = model(model.embed(torch.tensor(ids))[None], torch.arange(len(ids)), mask)[0, -1]
    assert done.tokens[0].id == int(model.logits(hidden).argmax())
    assert done.metrics.prompt_tokens == len(ids)
