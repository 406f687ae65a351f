"""Answers of an engine to the same questions, token by token, and where two engines may differ.

```
together        caption, query, detect, point, ... of each picture; several pictures; a first turn    batched
one at a time   the second turn, behind the answer to the first, which the prefix cache holds
```

Rounding differs with the sizes of batches, the number of threads and the kernels. So numbers have limits, and two
answers may part where one token is as good as the other: the engine that is compared with tells how good both are.
Behind that place they answer different questions, and nothing more is compared.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from PIL import Image

from photonlite.api import VisionModel
from photonlite.api.tasks import Task
from photonlite.errors import ImageError
from photonlite.grammar.decoding.grammars import BudgetedGrammar
from photonlite.request import Allowed, Request, SamplingSettings, Token

STEPS: Final = 20
"""Tokens of an answer at most."""

QUESTIONS: Final = ("Describe this image.", "How many objects are there?")
CHOICES: Final = ["yes", "no"]

_PROBABILITY: Final = {True: 1e-3, False: 0.1}  # differences of probabilities: in float32, and in half precision
_ODDS: Final = {True: 1e-3, False: 0.5}  # of the logits of two tokens of which either may come
_PLACE: Final = {True: 0.01, False: 0.05}  # of coordinates and sizes, where their neighbours are as good
_FLAT: Final = 0.25  # of the probability around two places far apart, as a share, where either may come

Verdict: TypeAlias = Literal["same", "tie", "differs"]


@dataclass(frozen=True)
class Answer:
    """What was asked, as the engine got it, and what came."""

    request: Request
    images: tuple[Any, ...]
    tokens: tuple[Token, ...]
    result: Mapping[str, Any]

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(token.id for token in self.tokens)


def ask(model: VisionModel, pictures: Sequence[Image.Image], *, together: bool) -> dict[str, Answer]:
    """Ask every skill about every picture; of a model that reads several, also about all of them, and a second turn.

    The first turns are asked all at once where `together`, else one after the other. Returns the answers by name.
    """
    answers = _answers(model, _first_turns(model, pictures), together=together)
    if model.reads_several:
        asking: Any = model._building
        messages = _number_asked(pictures[0])
        messages += [
            {"role": "assistant", "content": answers["first turn"].result["answer"]},
            {"role": "user", "content": ["Compare it with", {"type": "image", "image": pictures[1]}, "please."]},
        ]
        second = {"second turn": asking.chat(messages, settings={"max_tokens": STEPS})}
        answers |= _answers(model, second, together=False)
    return answers


def in_words(answers: Mapping[str, Answer]) -> dict[str, Answer]:
    """Return the answers that no grammar constrains."""
    free = ("caption", "query", "words", "several", "second turn")
    return {name: answer for name, answer in answers.items() if name.startswith(free)}


def compare(reference: VisionModel, answer: Answer, expected: Answer, *, exact: bool) -> Verdict:
    """Compare an answer with that of the reference, which is asked about the tokens where they part."""
    if answer.request.prompt != expected.request.prompt:
        return "tie"  # the first turns differ; they are compared by themselves
    if "scores" in answer.result:
        ours, theirs = answer.result["scores"], expected.result["scores"]
        return _verdict(_all_near(list(ours.values()), list(theirs.values()), _PROBABILITY[exact]), "same")
    pairs = list(zip(answer.tokens, expected.tokens, strict=False))
    place = next((place for place, (one, other) in enumerate(pairs) if not _same_choice(one, other)), None)
    if place is None:
        whole = len(answer.tokens) == len(expected.tokens)
        near = all(_all_near(_numbers(one), _numbers(other), _PROBABILITY[exact]) for one, other in pairs)
        return _verdict(whole and near, "same")
    return _verdict(_undecided(reference, expected, place, pairs[place], exact=exact), "tie")


def _first_turns(model: VisionModel, pictures: Sequence[Image.Image]) -> dict[str, Task[Any]]:
    asking: Any = model._building  # its methods return tasks, from which tokens can be had
    settings = {"max_tokens": STEPS, "max_objects": 4}
    tasks: dict[str, Task[Any]] = {}
    for place, image in enumerate(pictures):
        if "caption" in model.skills:
            tasks[f"caption {place}"] = asking.caption(image, "short", settings=settings)
        if "query" in model.skills:
            for number, question in enumerate(QUESTIONS):
                tasks[f"query {place}.{number}"] = asking.query(image, question, settings=settings)
            tasks[f"choices {place}"] = asking.query(image, "Is it red?", choices=CHOICES)
        for skill in ("detect", "point", "segment"):
            if skill in model.skills:
                tasks[f"{skill} {place}"] = getattr(asking, skill)(image, "circle", settings=settings)
    if "query" in model.skills:
        with suppress(ImageError):  # some families answer about images only
            tasks["words"] = asking.query(None, QUESTIONS[1], settings=settings)
    if model.reads_several:
        tasks["several"] = asking.query(list(pictures), QUESTIONS[1], settings=settings)
        # Digits are spelled one by one, so that the prompt of the next turn has the very tokens of this answer.
        tasks["first turn"] = asking.chat(_number_asked(pictures[0]), regex=rf"\d{{{STEPS}}}", settings=settings)
    return tasks


def _number_asked(picture: Image.Image) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image", "image": picture}, "Which number does it show?"]}]


def _answers(model: VisionModel, tasks: Mapping[str, Task[Any]], *, together: bool) -> dict[str, Answer]:
    launch, found = model._session.launch, {}
    handles = {name: launch(task) for name, task in tasks.items()} if together else {}
    for name, task in tasks.items():
        handle = handles[name] if together else launch(task)
        tokens = handle.result().tokens
        found[name] = Answer(handle.request, task.images, tokens, task.result_of(handle))
    return found


def _undecided(reference: VisionModel, expected: Answer, place: int, pair: tuple[Token, Token], *, exact: bool) -> bool:
    """Whether either of two tokens may come at a place of the reference's answer."""
    one, other = pair
    if one.values and other.values:
        if _all_near(one.values, other.values, _PLACE[exact]):
            return True
        masses = [min(token.masses) for token in pair]
        flat = max(masses) <= 0.5 + _PROBABILITY[exact] and max(masses) - min(masses) <= _FLAT * max(masses)
        return flat and not exact
    if one.values or other.values:  # the list ends here in one answer only
        return max(token.probability for token in pair if token.values) <= 0.5 + _PROBABILITY[exact]
    prompt = (*expected.request.prompt, *expected.tokens[:place])
    asked = Request("query", prompt, _OneOf((one.id, other.id)), 1, SamplingSettings(), begun=place)
    (chosen,) = reference._session.launch(Task(asked, expected.images, finish=None)).result().tokens
    least, most = sorted(chosen.scores)
    return least > 0 and math.log(most / least) <= _ODDS[exact]


class _OneOf(BudgetedGrammar):
    """One token of a few, with the probability of each among them."""

    def __init__(self, ids: tuple[int, ...]) -> None:
        super().__init__(1)
        self._allowed = Allowed(ids=ids, scored=ids)

    @property
    def allowed(self) -> Allowed:
        return self._allowed

    def _advance(self, token: Token) -> str | None:
        return "stop"


def _same_choice(one: Token, other: Token) -> bool:
    return one.id == other.id and _all_near(one.values, other.values, 1e-6)


def _numbers(token: Token) -> tuple[float, ...]:
    return (token.probability, *token.masses, *token.scores)


def _all_near(ours: Sequence[float], theirs: Sequence[float], limit: float) -> bool:
    """Whether all differences are within a limit; NaN is not."""
    return len(ours) == len(theirs) and all(abs(a - b) <= limit for a, b in zip(ours, theirs, strict=True))


def _verdict(passed: bool, kind: Verdict) -> Verdict:
    return kind if passed else "differs"
