"""Ask a loaded model all questions about one held-out scene and record answers and truth."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench.nano.evaluation.asking.named import json_questions
from bench.nano.evaluation.asking.spatial import detect_questions, point_questions, segment_questions
from bench.nano.evaluation.asking.subjects import Question
from bench.nano.evaluation.asking.words import caption_questions, query_questions
from bench.nano.evaluation.records import SKILLS, SceneRecord, Skill
from bench.nano.scenes.held_out.scene import Scene
from photonlite.errors import UnsupportedSkillError

_SKILLS: dict[Skill, tuple[Callable[[Scene, random.Random], Iterator[Question]], str]] = {
    "detect": (detect_questions, "detections"),
    "point": (point_questions, "points"),
    "segment": (segment_questions, "outlines"),
    "caption": (caption_questions, "captions"),
    "query": (query_questions, "questions"),
    "typed": (json_questions, "typed"),
}
"""Questions of each skill, and the field of `SceneRecord` that keeps their answers."""


def examine(model: Any, scene: Scene, seed: int, skills: Sequence[Skill] = SKILLS) -> SceneRecord:
    """Ask the questions about one scene and record the answers; `seed` decides the words of the questions.

    What the checkpoint does not support (a skill, references, reasoning) is left out of the record.
    """
    record = SceneRecord(
        seed,
        scene.background,
        scene.image.width,
        scene.image.height,
        objects=len(scene.objects),
        turned=scene.turned,
        cluttered=scene.cluttered,
        arrangement=scene.arrangement,
    )
    questions = [(skill, question) for skill in skills for question in questions_about(scene, seed, skill)]
    # The engine decodes several questions in one step, which takes two thirds of the time.
    image = model.encode_image(scene.image)
    answers = model.batch([question.task | {"image": image} for _, question in questions], errors="return")
    for (skill, question), answer in zip(questions, answers, strict=True):
        if isinstance(answer, UnsupportedSkillError):
            continue
        if isinstance(answer, Exception):
            raise answer
        getattr(record, _SKILLS[skill][1]).append(question.read(answer))
    return record


def questions_about(scene: Scene, seed: int, skill: Skill) -> list[Question]:
    """Make a skill's questions about a scene; the seed decides the words."""
    return list(_SKILLS[skill][0](scene, random.Random(f"{skill} {seed}")))
