"""Summarise the records of an evaluation and format the figures as text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

from bench.nano.evaluation.figures import spatial
from bench.nano.evaluation.figures.calibration import calibration_figures
from bench.nano.evaluation.figures.headline import compare
from bench.nano.evaluation.figures.typed import typed_figures
from bench.nano.evaluation.figures.words import caption_figures, query_figures, reasoning_figures
from bench.nano.evaluation.records import SceneRecord
from bench.nano.evaluation.scoring import Figures


def summarize(records: Sequence[SceneRecord]) -> Figures:
    """Compute the figures of all skills that were examined.

    F1, precision and recall count boxes one to one at IoU 0.5, for every kind in every scene. Questions for absent
    things are counted apart, except that their boxes are wrong for average precision and AUC.
    """
    figures: Figures = {"scenes": len(records), "headline": [asdict(row) for row in compare(records)]}
    if any(record.detections for record in records):
        figures["detect"] = spatial.detect_figures(records)
        figures["calibration"] = calibration_figures(records)
        figures["absent"] = spatial.absent_figures(chain.from_iterable(record.detections for record in records))
    if points := list(chain.from_iterable(record.points for record in records)):
        figures["point"] = spatial.point_figures(points)
    if any(record.outlines for record in records):
        figures["segment"] = spatial.segment_figures(records)
    if any(record.captions for record in records):
        figures["caption"] = caption_figures(records)
    questions = list(chain.from_iterable(record.questions for record in records))
    if questions:
        figures["query"] = query_figures(questions)
    if reasoned := [question for question in questions if question.points is not None]:
        figures["reasoning"] = reasoning_figures(reasoned)
    if typed := list(chain.from_iterable(record.typed for record in records)):
        figures["typed"] = typed_figures(typed)
    return figures


def format_table(figures: Mapping[str, Any]) -> str:
    """Lay figures out as lines of text: the headline with its targets, then each skill.

    Single numbers of a skill come first, then one small table for each breakdown.
    """
    lines = [f"{figures['scenes']} scenes", "", *_headline(figures["headline"])]
    for skill, values in figures.items():
        if isinstance(values, Mapping):
            singles = {name: value for name, value in values.items() if not isinstance(value, Mapping)}
            lines += ["", skill]
            lines += [f"  {name.replace('_', ' '):<28}{_number(value):>9}" for name, value in singles.items()]
            for name, groups in values.items():
                if isinstance(groups, Mapping) and groups:
                    lines += ["", _row(f"  {name.replace('_', ' ')}", next(iter(groups.values())).keys())]
                    lines += [_row(f"    {group}", rates.values()) for group, rates in groups.items()]
    return "\n".join(lines)


def _headline(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    width = max((len(row["name"]) for row in rows), default=0)
    yield f"{'':<{width}}{'figure':>7}{'target':>10}{'met':>5}   95 % interval"
    for row in rows:
        limit = f"{'<=' if row['at_most'] else '>='} {row['limit']:.3f}"
        interval = "{:.3f} to {:.3f}".format(*row["interval"]) if row["interval"] else "-"
        yield f"{row['name']:<{width}}{row['figure']:>7.3f}{limit:>10}{'yes' if row['met'] else 'no':>5}   {interval}"


def _row(name: str, cells: Iterable[float | str]) -> str:
    return f"{name:<30}" + "".join(f"{_cell(cell):>9}  " for cell in cells).rstrip()


def _cell(cell: float | str) -> str:
    return cell.replace("_", " ") if isinstance(cell, str) else _number(cell)


def _number(value: float) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
