"""Ask a loaded model all questions about one held-out scene and record answers and truth."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from bench.nano.evaluation.asking.spatial import detect_questions, point_questions, segment_questions
from bench.nano.evaluation.asking.subjects import Question
from bench.nano.evaluation.asking.typed import typed_questions
from bench.nano.evaluation.asking.words import caption_questions, query_questions
from bench.nano.evaluation.records import SKILLS, SceneRecord, Skill
from bench.nano.scenes.held_out.scene import Scene
from photonlite.errors import UnsupportedSkillError

_QUESTIONS: dict[Skill, Callable[[Scene, random.Random], Iterator[Question]]] = {
    "detect": detect_questions,
    "point": point_questions,
    "segment": segment_questions,
    "caption": caption_questions,
    "query": query_questions,
    "typed": typed_questions,
}


class Model(Protocol):
    """What the evaluation uses of `photonlite.load`'s model."""

    def encode_image(self, image: Any) -> Any: ...

    def batch(self, tasks: Iterable[Mapping[str, Any]], *, errors: Any) -> list[Any]: ...


def examine(model: Model, scene: Scene, seed: int, skills: Sequence[Skill] = SKILLS) -> SceneRecord:
    """Ask one scene's questions, the same ones for the same seed.

    Every kind in the scene is requested by one random phrase, and so are one absent object and one word that names no
    object. A skill's questions do not depend on which other skills are examined. What the checkpoint was not
    trained for (a skill, references, reasoning) is left out of the record.
    """
    record = SceneRecord(seed, scene.background, scene.image.width, scene.image.height)
    kept: dict[Skill, list[Any]] = {
        "detect": record.detections,
        "point": record.points,
        "segment": record.outlines,
        "caption": record.captions,
        "query": record.questions,
        "typed": record.typed,
    }
    questions = [(skill, question) for skill in skills for question in questions_about(scene, seed, skill)]
    # The engine decodes several questions in one step, which takes two thirds of the time that one by one takes.
    image = model.encode_image(scene.image)
    answers = model.batch([question.task | {"image": image} for _, question in questions], errors="return")
    for (skill, question), answer in zip(questions, answers, strict=True):
        if isinstance(answer, UnsupportedSkillError):
            continue
        if isinstance(answer, Exception):
            raise answer
        kept[skill].append(question.read(answer))
    return record


def questions_about(scene: Scene, seed: int, skill: Skill) -> list[Question]:
    """Make a skill's questions about a scene; the seed decides the words."""
    return list(_QUESTIONS[skill](scene, random.Random(f"{skill} {seed}")))
