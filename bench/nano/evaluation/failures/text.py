"""Answers as HTML, with what is wrong in them marked and what is right beside it."""

import json
from html import escape

from bench.nano.evaluation.captions import UNKNOWN_KIND, Statement, is_true, listed, parse_caption, placed
from bench.nano.evaluation.figures.words import agrees, is_right
from bench.nano.evaluation.records import CaptionRecord, OutlineRecord, PlaceRecord, QueryRecord, TypedRecord
from bench.nano.scenes.objects import load_objects


def located_html(question: PlaceRecord, wrong: int, missed: int) -> str:
    """Say what was looked for, and what came of it."""
    outcome = [f"{missed} of {len(question.truth)} missed" if missed else "", f"{wrong} wrong" if wrong else ""]
    marked = " at the mark" if question.reference else ""
    return f"<p>{_quoted(question.phrase)}{marked}{_how(question.wanted)}: {', '.join(filter(None, outcome))}</p>"


def outline_html(outline: OutlineRecord) -> str:
    """Say what was to be outlined, and how well it was."""
    marked = " at the mark" if outline.reference else ""
    if outline.place is None:
        outcome = "there is none"
    elif outline.polygon:
        outcome = f"IoU {outline.iou:.2f}, {outline.vertices} vertices"
    else:
        outcome = "no outline"
    return f"<p>{_quoted(outline.phrase)}{marked}{_how(outline.wanted)}: {outcome}</p>"


def caption_html(caption: CaptionRecord) -> str:
    """Write a caption out, wrong numbers, kinds and zones marked, and after it what it leaves out.

    The second mention of a kind is wrong.
    """
    wrong = [part for part in placed(caption.text) if not is_true(part, caption.zones)]
    right: set[int] = set()
    for part in listed(caption.text):
        if caption.truth.get(part.kind) == part.value and part.kind not in right:
            right.add(part.kind)
        else:
            wrong.append(part)
    missing = ", ".join(_counted(kind, count) for kind, count in caption.truth.items() if kind not in right)
    label = f"<b>{caption.length}</b> " if caption.length else ""
    return f"<p>{label}{_marked(caption.text, wrong)}{f' <ins>{escape(missing)}</ins>' if missing else ''}</p>"


def is_whole(caption: CaptionRecord) -> bool:
    return dict(parse_caption(caption.text)) == caption.truth and all(
        is_true(part, caption.zones) for part in placed(caption.text)
    )


def asked_html(question: QueryRecord) -> str:
    """Write a question out, and the wrong answer beside the right one."""
    answer = escape(question.answer) or "(empty)"
    if question.about == "list":
        truth = {kind: count for kind, count in parse_caption(question.expected).items() if kind != UNKNOWN_KIND}
        return f"<p>{escape(question.question)}</p>" + caption_html(CaptionRecord(question.answer, truth, length=""))
    shown = f"<b>{answer}</b>" if is_right(question) else f"<del>{answer}</del> <ins>{escape(question.expected)}</ins>"
    notes = []
    if question.points is not None and not agrees(question):
        notes.append(f"<del>{len(question.points)} points</del>")
    if stray := question.on_object.count(False):
        notes.append(f"<del>{stray} beside</del>")
    return f"<p>{escape(question.question)}<br>{' '.join([shown, *notes])}</p>"


def typed_html(typed: TypedRecord) -> str:
    """Write a typed answer out, and after it the wrong values beside the right ones."""
    wrong = [
        f"{escape(one.key)} <del>{escape(_value(one.answer))}</del> <ins>{escape(_value(one.expected))}</ins>"
        for one in typed.fields
        if not one.right
    ]
    return f"<p>{escape(typed.question)}<br>{escape(typed.text)}<br>{'; '.join(wrong)}</p>"


def _value(value: object) -> str:
    rounded = [round(float(part), 2) for part in value] if isinstance(value, list) else value
    return json.dumps(rounded, ensure_ascii=False)


def _marked(text: str, wrong: list[Statement]) -> str:
    pieces, done = [], 0
    for part in sorted(wrong, key=lambda part: part.start):
        pieces += [escape(text[done : part.start]), f"<del>{escape(text[part.start : part.end])}</del>"]
        done = part.end
    return "".join([*pieces, escape(text[done:])])


def _counted(kind: int, count: int) -> str:
    item = load_objects()[kind]
    return f"{count} {item.name if count == 1 else item.plural}"


def _quoted(phrase: str) -> str:
    return f"<b>{escape(phrase)}</b>"


def _how(wanted: str) -> str:
    return {"absent": " (not in this picture)", "unknown": " (no object it knows)"}.get(wanted, "")
