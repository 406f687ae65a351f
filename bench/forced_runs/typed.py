"""Typed answers of the shipped checkpoint, with runs and without."""

import json
import random
from collections import Counter
from typing import Any

from PIL import Image

import photonlite
from bench.forced_runs.timing import STREAMS, ratio_row
from bench.nano.questions.text import properties
from photonlite.api import VisionModel

PICTURES = ("assets/desk.png", "assets/market.png", "assets/street.png")
_CLOSE = 1e-4  # coordinates, scores: sums in another order round otherwise
_CLOSE_SCORE = 1e-3


def draw_schema(dice: random.Random) -> dict[str, Any]:
    """Draw a schema of one to five properties with names and types as the shipped checkpoint knows them."""
    kinds: dict[properties.Meaning, dict[str, Any]] = {
        "box": {"type": "object", "format": "box"},
        "where": {"type": "object", "format": "point"},
        "count": {"type": "integer", "minimum": 0, "maximum": 30},
        "present": {"type": "boolean"},
        "name": {"enum": dice.sample(["banana", "red apple", "mug", "key", "car", "bus", "cherries", "pear"], 4)},
        "colour": {"enum": ["red", "green", "blue", "yellow", "brown"]},
    }
    chosen = dice.sample(list(kinds), dice.randint(1, 5))
    found = {dice.choice(properties.variants(properties.names(one, "train"))): kinds[one] for one in chosen}
    schema: dict[str, Any] = {"type": "object", "properties": found, "required": list(found)}
    if dice.random() < 0.2:
        return {"type": "array", "items": schema, "minItems": 1, "maxItems": 3}
    return schema


def load_pair(streams: int, device: str) -> dict[bool, VisionModel]:
    """Load the shipped checkpoint twice: with runs, and without."""
    settings: Any = {"max_batch": streams, "grammar_limit_s": 60.0}
    return {runs: photonlite.load(device=device, engine=settings | {"forced_runs": runs}) for runs in (True, False)}


def agree(questions: int, device: str) -> list[str]:
    """Compare answers with runs and without; returns what to print."""
    models, dice = load_pair(8, device), random.Random(1)
    pictures = [Image.open(path).convert("RGB") for path in PICTURES]
    images = {runs: [model.encode_image(one) for one in pictures] for runs, model in models.items()}
    found: Counter[str] = Counter()
    shown: list[str] = []
    for first in range(0, questions, 40):
        tasks: list[dict[str, Any]] = [
            {"skill": "query", "question": f"what is in the picture {place}", "schema": draw_schema(dice)}
            for place in range(first, min(first + 40, questions))
        ]
        texts = {
            runs: [
                str(answer["text"])
                for answer in model.batch(
                    [task | {"image": images[runs][place % len(pictures)]} for place, task in enumerate(tasks)]
                )
            ]
            for runs, model in models.items()
        }
        for task, own, other in zip(tasks, texts[True], texts[False], strict=True):
            kind = compare(own, other)
            found[kind] += 1
            if kind == "different":
                shown.append(f"{json.dumps(task['schema'])}\n  at once     {own}\n  one by one  {other}")
    counters = {runs: model.metrics()["counters"] for runs, model in models.items()}
    for model in models.values():
        model.close()
    steps = [
        f"{'at once' if runs else 'one by one'}: {one['forced_tokens']} of {one['tokens']} tokens, {one['steps']}"
        for runs, one in counters.items()
    ]
    return [f"{questions} typed answers: {dict(found)}", *steps, *shown]


def compare(own: str, other: str) -> str:
    """Say how two JSON texts agree: "equal", "equal but for rounding", or "different"."""
    if own == other:
        return "equal"
    return "equal but for rounding" if _is_close(json.loads(own), json.loads(other)) else "different"


def _is_close(one: Any, two: Any, name: str = "") -> bool:
    if isinstance(one, float) and isinstance(two, float):
        return abs(one - two) < (_CLOSE_SCORE if name == "score" else _CLOSE)
    if isinstance(one, dict) and isinstance(two, dict):
        return list(one) == list(two) and all(_is_close(one[key], two[key], key) for key in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(_is_close, one, two))
    return bool(one == two)


def typed(rounds: int, device: str) -> list[str]:
    """Measure typed answers of the shipped checkpoint about one encoded image."""
    models = load_pair(max(STREAMS), device)
    picture = Image.open(PICTURES[0]).convert("RGB")
    images = {runs: model.encode_image(picture) for runs, model in models.items()}
    schema = {
        "type": "object",
        "properties": {
            "object_name": {"enum": ["banana", "red apple", "pear"]},
            "total_count": {"type": "integer", "minimum": 0, "maximum": 20},
            "bounding_box": {"type": "object", "format": "box"},
            "center_point": {"type": "object", "format": "point"},
        },
        "required": ["object_name", "total_count", "bounding_box", "center_point"],
    }

    def ask(runs: bool, streams: int) -> None:
        task = {"skill": "query", "question": "what is on the desk", "schema": schema, "image": images[runs]}
        models[runs].batch([task] * streams)

    rows = [ratio_row(f"typed answers, {streams} streams", rounds, ask, streams) for streams in STREAMS]
    for model in models.values():
        model.close()
    return rows
