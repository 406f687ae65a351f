"""HTML page of wrong answers: a section for each skill, the worst scenes first, shapes drawn on the images."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFilter

from bench.nano.evaluation.captions import is_true, parse_caption, placed
from bench.nano.evaluation.figures.spatial import SPIKED
from bench.nano.evaluation.figures.words import agrees, is_right
from bench.nano.evaluation.records import Place, PlaceRecord, SceneRecord
from bench.nano.evaluation.scoring import match_boxes
from bench.nano.scenes.held_out.scene import Scene
from bench.nano.scenes.objects import load_objects

GOOD_OUTLINE = 0.75
"""Outlines below this IoU are shown."""
SIDE = 400
"""Longer side of an image on the page, in pixels."""

_PANELS = 3  # images of one scene at most
_SCALE = 2  # shapes are drawn at this multiple of the size, which smooths them
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 24px; color-scheme: light dark }
section { display: grid; grid-template-columns: repeat(auto-fill, minmax(290px, 1fr)); gap: 16px; align-items: start }
img { width: 100%; height: 280px; object-fit: contain; background: #26262b }
del { color: #ff2d55 } ins { color: #2fbf5b; text-decoration: none }
"""

Role = Literal["found", "missed", "right", "wrong", "reference"]
COLOURS: dict[Role, str] = {
    "found": "#2fbf5b",
    "missed": "#ffb300",
    "right": "#2f8bff",
    "wrong": "#ff2d55",
    "reference": "#c04dff",
}
"""Colours: objects found or missed, answers right or wrong, references of the request."""


@dataclass(frozen=True)
class Shape:
    """A point (x, y), a box of four numbers, a closed outline, or the visible pixels of an object."""

    role: Role
    place: Place = ()
    outline: Sequence[Place] = ()
    object: int | None = None


@dataclass(frozen=True)
class Mistake:
    badness: float
    html: str
    shapes: Sequence[Shape] = ()


def detect_mistakes(record: SceneRecord) -> Iterator[Mistake]:
    """Return detect questions with a wrong or missing box."""
    for question in record.detections:
        matches = match_boxes(question.answers, question.truth)
        found, right = {match.truth for match in matches}, {match.answer for match in matches}
        yield from _places(
            question,
            [place in found for place in range(len(question.truth))],
            [place in right for place in range(len(question.answers))],
        )


def point_mistakes(record: SceneRecord) -> Iterator[Mistake]:
    """Return point questions with a point off its object or an object without a point."""
    for question in record.points:
        yield from _places(question, question.found, question.on_object)


def _places(question: PlaceRecord, found: Sequence[bool], right: Sequence[bool]) -> Iterator[Mistake]:
    wrong, missed = list(right).count(False), list(found).count(False)
    if wrong + missed:
        shapes = [Shape("found" if hit else "missed", box) for box, hit in zip(question.truth, found, strict=True)]
        shapes += [Shape("right" if hit else "wrong", one) for one, hit in zip(question.answers, right, strict=True)]
        text = f"{missed} of {len(question.truth)} missed, {wrong} wrong"
        sure = [f"{score:.2f}" for score, hit in zip(question.scores, right, strict=True) if not hit]
        text += f" with scores {', '.join(sure)}" if sure else ""
        html = f"<b>{escape(question.phrase)}</b> ({question.wanted}): {text}"
        yield Mistake(wrong + missed, html, [*shapes, *_reference(question.reference)])


def segment_mistakes(record: SceneRecord) -> Iterator[Mistake]:
    """Return outlines that are poor, missing, or of something absent."""
    for outline in record.outlines:
        poor = outline.iou < GOOD_OUTLINE or outline.length > SPIKED
        if poor if outline.place is not None else outline.polygon:
            hit = outline.iou >= 0.5
            shapes = [] if outline.place is None else [Shape("found" if hit else "missed", object=outline.place)]
            if outline.polygon:
                shapes.append(Shape("right" if hit else "wrong", outline=outline.polygon))
            text = f"IoU {outline.iou:.2f}, {outline.vertices} vertices, {outline.length:.2f} of the length"
            html = f"<b>{escape(outline.phrase)}</b> ({outline.wanted}): {text}"
            yield Mistake(1 - outline.iou, html, [*shapes, *_reference(outline.reference)])


def caption_mistakes(record: SceneRecord) -> Iterator[Mistake]:
    """Return captions with wrong numbers, kinds or zones, or with something left out."""
    for caption in record.captions:
        counts = parse_caption(caption.text)
        kinds = {kind for kind in {*counts, *caption.truth} if counts[kind] != caption.truth.get(kind, 0)}
        zones = [zone for kind, zone in placed(caption.text) if not is_true(kind, zone, caption.zones)]
        if kinds or zones:
            right = ", ".join(f"{count} {load_objects()[kind].name}" for kind, count in caption.truth.items())
            html = f"{escape(caption.text)}<br><del>{escape(', '.join(zones))}</del> <ins>{escape(right)}</ins>"
            yield Mistake(len(kinds) + len(zones), html)


def query_mistakes(record: SceneRecord) -> Iterator[Mistake]:
    """Return wrong answers in words, and reasoning that points elsewhere or at another number of things."""
    for question in record.questions:
        stray = question.on_object.count(False)
        unequal = question.points is not None and not agrees(question)
        if stray or unequal or not is_right(question):
            places = zip(question.points or (), question.on_object, strict=True)
            shapes = [Shape("right" if hit else "wrong", place) for place, hit in places]
            html = f"{escape(question.question)}<br>{_answered(question.answer, question.expected)}"
            html += f" <del>{len(question.points or ())} points, {stray} beside</del>" if stray or unequal else ""
            yield Mistake(1 + stray + unequal, html, [*shapes, *_reference(question.reference)])


def typed_mistakes(record: SceneRecord) -> Iterator[Mistake]:
    """Return typed answers with a wrong value, and the boxes and points in them."""
    for answer in record.typed:
        wrong = [one for one in answer.fields if not one.right]
        if wrong:
            shapes = []
            for one in answer.fields:
                if one.kind in ("box", "point"):
                    shapes += [Shape("found" if one.right else "missed", tuple(one.expected))] if one.expected else []
                    shapes += [Shape("right" if one.right else "wrong", tuple(one.answer))] if one.answer else []
            fields = "; ".join(f"{escape(one.key)} {_answered(one.answer, one.expected)}" for one in wrong)
            yield Mistake(len(wrong), f"{escape(answer.question)}<br>{escape(answer.text)}<br>{fields}", shapes)


def _answered(answer: object, expected: object) -> str:
    return f"<del>{escape(str(answer))}</del> <ins>{escape(str(expected))}</ins>"


def _reference(place: Place | None) -> Iterator[Shape]:
    if place is not None:
        yield Shape("reference", place)


MISTAKES: dict[str, Callable[[SceneRecord], Iterator[Mistake]]] = {
    "detect": detect_mistakes,
    "point": point_mistakes,
    "segment": segment_mistakes,
    "caption": caption_mistakes,
    "query": query_mistakes,
    "typed": typed_mistakes,
}


def write_failures(
    folder: Path, records: Sequence[SceneRecord], scene_of: Callable[[int], Scene], limit: int = 24
) -> None:
    """Write failures.html and its images.

    Args:
        folder: Existing folder; images of an earlier page are removed.
        records: Records of the evaluation.
        scene_of: Makes the scene of a seed.
        limit: Scenes a section at most.
    """
    images = folder / "failures"
    shutil.rmtree(images, ignore_errors=True)
    images.mkdir(parents=True)
    legend = "; ".join(f'<span style="color:{colour}">{role}</span>' for role, colour in COLOURS.items())
    page = [f"<!doctype html><meta charset=utf-8><title>Wrong answers</title><style>{_STYLE}</style><p>{legend}</p>"]
    for skill, mistakes_of in MISTAKES.items():
        failed = [(record, found) for record in records if (found := list(mistakes_of(record)))]
        failed.sort(key=lambda one: -sum(mistake.badness for mistake in one[1]))
        page.append(f"<h2>{skill}: {len(failed)} of {len(records)} scenes</h2><section>")
        for record, mistakes in failed[:limit]:
            scene = scene_of(record.seed)
            for number, mistake in enumerate(sorted(mistakes, key=lambda one: -one.badness)[:_PANELS]):
                name = f"failures/{skill}-{record.seed}-{number}.jpg"
                thumbnail(scene, mistake.shapes).save(folder / name, quality=76)
                notes = f"{record.seed}, {record.background}, {record.width}x{record.height}"
                page.append(
                    f"<article><img loading=lazy src={name}><p>{mistake.html}<br><small>{notes}</small></article>"
                )
        page.append("</section>")
    (folder / "failures.html").write_text("\n".join(page), encoding="utf-8")


def thumbnail(scene: Scene, shapes: Sequence[Shape] = ()) -> Image.Image:
    """Draw shapes on a scene's image, `SIDE` pixels on its longer side."""
    scale = SIDE / max(scene.image.size)
    width, height = (max(1, round(side * scale)) for side in scene.image.size)
    large = scene.image.resize((_SCALE * width, _SCALE * height), Image.Resampling.BICUBIC)
    for shape in shapes:
        if shape.object is not None:
            _tint(large, scene.mask(shape.object), COLOURS[shape.role])
        else:
            _draw(ImageDraw.Draw(large), shape, large.size)
    return large.resize((width, height), Image.Resampling.LANCZOS)


def _tint(image: Image.Image, mask: np.ndarray, colour: str) -> None:
    """Tint the pixels of a mask by 30 % and draw their edge."""
    whole = Image.fromarray((mask * 255).astype(np.uint8)).resize(image.size, Image.Resampling.NEAREST)
    inner = whole.filter(ImageFilter.MinFilter(9))
    cover = Image.composite(inner.point([round(0.3 * level) for level in range(256)]), whole, inner)
    image.paste(ImageColor.getrgb(colour), (0, 0), cover)


def _draw(draw: ImageDraw.ImageDraw, shape: Shape, size: tuple[int, int]) -> None:
    colour, places = COLOURS[shape.role], shape.outline or [shape.place]
    if len(shape.place) == 4:
        x0, y0, x1, y1 = shape.place
        places = [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]
    corners = [(x * size[0], y * size[1]) for x, y in places]
    if len(corners) == 1:
        [(x, y)] = corners
        draw.ellipse((x - 15, y - 15, x + 15, y + 15), fill=colour, outline="black", width=5)
    else:
        # The first edge is drawn twice, which joins the last corner.
        draw.line([*corners, *corners[:2]], fill=colour, width=6, joint="curve")
