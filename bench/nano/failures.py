"""A page of the scenes that went worst: each picture with the truth in one colour and the answers in another."""

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.nano.examine import Located, Record
from bench.nano.objects import SceneObject
from bench.nano.scenes import make_scene
from bench.nano.scoring import compare_counts, count_matches, inside, parse_caption, same_answer
from bench.nano.sprites import Sprites
from photonlite.results.spatial import Detections, Points

_TRUTH, _ANSWER = "#00c853", "#ff1744"
_STYLE = (
    "body{font:15px/1.5 sans-serif;margin:2em;background:#f6f6f4}figure{display:inline-block;vertical-align:top;"
    "width:420px;margin:0 1em 1.5em 0;background:#fff;padding:8px}img{max-width:100%;max-height:420px}"
)


def write_failures(
    folder: Path, records: Iterable[Record], objects: Sequence[SceneObject], sprites: Sprites, limit: int = 60
) -> Path:
    """Write `failures.html` and its pictures.

    Args:
        folder: Where to; made if missing.
        records: All records; those with the most mistakes come first, those without any are left out.
        objects: What the scenes were made of.
        sprites: What the scenes were made of.
        limit: Scenes to show.

    Returns:
        The page.
    """
    failed = sorted((record for record in records if _mistakes(record)), key=_mistakes, reverse=True)[:limit]
    (folder / "failures").mkdir(parents=True, exist_ok=True)
    figures = [_scene_html(folder, record, objects, sprites) for record in failed]
    legend = f'<p><b style="color:{_TRUTH}">truth</b>, <b style="color:{_ANSWER}">answer</b></p>'
    page = folder / "failures.html"
    title = "Scenes with mistakes"
    body = "\n".join(figures) or "<p>No scene with a mistake.</p>"
    page.write_text(
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>\n'
        f"<h1>{title}</h1>{legend}\n{body}\n</html>\n",
        encoding="utf-8",
    )
    return page


def _mistakes(record: Record) -> int:
    boxes = sum(_wrong_boxes(question) for question in record.detections)
    points = sum(_wrong_points(question) for question in record.points)
    words = sum(not same_answer(question.answer, question.expected) for question in record.questions)
    captions = sum(bool(_caption_note(caption.text, caption.truth)) for caption in record.captions)
    return boxes + points + words + captions


def _wrong_boxes(question: Located) -> int:
    counts = count_matches(question.answers, question.truth)
    return counts.wrong + counts.missed


def _wrong_points(question: Located) -> int:
    stray = sum(not any(inside(point, box) for box in question.truth) for point in question.answers)
    return stray + abs(len(question.answers) - len(question.truth))


def _caption_note(text: str, truth: dict[int, int]) -> str:
    counts = compare_counts(parse_caption(text), truth, exact=True)
    return "" if counts.wrong + counts.missed == 0 else f"caption: {text}"


def _scene_html(folder: Path, record: Record, objects: Sequence[SceneObject], sprites: Sprites) -> str:
    """Draw each failed question of a scene on the picture, which is made anew from its seed."""
    scene = make_scene(record.seed, objects, sprites)
    blocks = []
    for kind, questions, wrong in (
        ("detect", record.detections, _wrong_boxes),
        ("point", record.points, _wrong_points),
    ):
        for number, question in enumerate(questions):
            if wrong(question):
                name = f"failures/{record.seed}-{kind}-{number}.jpg"
                _plot(scene.image, question).save(folder / name, quality=85)
                found = f"{len(question.answers)} answers, {len(question.truth)} true"
                text = f"{kind} {question.phrase!r} ({question.wanted}): {found}"
                blocks.append(f'<figure><img src="{name}" alt=""><figcaption>{html.escape(text)}</figcaption></figure>')
    notes = [_caption_note(caption.text, caption.truth) for caption in record.captions]
    notes += [
        f"{question.question} {question.answer} (right: {question.expected})"
        for question in record.questions
        if not same_answer(question.answer, question.expected)
    ]
    lines = "".join(f"<p>{html.escape(note)}</p>" for note in notes if note)
    if lines and not blocks:
        name = f"failures/{record.seed}.jpg"
        (folder / name).write_bytes(scene.jpeg)
        blocks.append(f'<figure><img src="{name}" alt=""></figure>')
    heading = f"<h2>{record.seed}: {record.background}, {record.width} x {record.height}</h2>"
    return heading + lines + "\n" + "\n".join(blocks)


def _plot(image: Any, question: Located) -> Any:
    truth = Detections([_box(box, "truth") for box in question.truth])
    colours = {"truth": _TRUTH, "answer": _ANSWER}
    pairs = zip(question.answers, question.scores, strict=True)
    answers: Detections | Points
    if question.answers and len(question.answers[0]) == 2:
        answers = Points([{"x": x, "y": y, "label": "answer", "score": score} for (x, y), score in pairs])
    else:
        answers = Detections([_box(box, "answer") | {"score": score} for box, score in pairs])
    picture = truth.plot(image, labels=False, colors=colours) if question.truth else image
    return answers.plot(picture, labels=bool(question.answers), colors=colours) if question.answers else picture


def _box(box: Sequence[float], label: str) -> dict[str, Any]:
    return dict(zip(("x_min", "y_min", "x_max", "y_max"), box, strict=True)) | {"label": label}
