"""Figures of answers that are JSON."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bench.nano.evaluation.asking.typed import CASES, FORMS
from bench.nano.evaluation.records import FieldRecord, TypedRecord
from bench.nano.evaluation.scoring import Figures, mean

_PLACES = {"box": {"x_min", "y_min", "x_max", "y_max", "score"}, "point": {"x", "y", "score"}}
_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "null": lambda value: value is None,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def typed_figures(answers: Sequence[TypedRecord]) -> Figures:
    """Return the shares of right values, of wholly right answers, and of answers that keep to their schema."""
    kinds, cases = defaultdict(list), defaultdict(list)
    for answer in answers:
        cases[answer.case].append(answer)
        for field in answer.fields:
            kinds[field.kind].append(field)
    everything = [field for answer in answers for field in answer.fields]
    names = {name: [field for field in everything if field.names == name] for name in ("trained", "unseen")}
    forms = {form: [field for field in everything if field.form == form] for form in FORMS}
    return {
        "fields_right": _right(names["trained"]),
        "unseen_names": _right(names["unseen"]),
        "fields": len(everything),
        "longest_answer_tokens": max((answer.tokens for answer in answers), default=0),
        "whole_answers": _whole(answers),
        "valid": mean(map(is_valid, answers)),
        **{f"{kind}_right": _right(kinds[kind]) for kind in sorted(kinds)},
        "by_case": {
            case: {
                "fields_right": _right([field for answer in cases[case] for field in answer.fields]),
                "whole": _whole(cases[case]),
                "answers": len(cases[case]),
            }
            for case in CASES
            if case in cases
        },
        "by_form": {
            form: {
                "trained": _right(field for field in fields if field.names == "trained"),
                "unseen": _right(field for field in fields if field.names == "unseen"),
                "fields": len(fields),
            }
            for form, fields in forms.items()
            if fields
        },
    }


def _right(fields: Iterable[FieldRecord]) -> float:
    return mean(field.right for field in fields)


def _whole(answers: Iterable[TypedRecord]) -> float:
    return mean(all(field.right for field in answer.fields) for answer in answers)


def is_valid(answer: TypedRecord) -> bool:
    try:
        return conforms(json.loads(answer.text), answer.schema)
    except ValueError:
        return False


def conforms(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value keeps to one of the schemas of `asking.typed`; other keywords are not known here."""
    if "anyOf" in schema:
        return any(conforms(value, one) for one in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    if not _TYPES[schema["type"]](value):
        return False
    if schema.get("format") in _PLACES:
        return set(value) == _PLACES[schema["format"]] and all(0 <= number <= 1 for number in value.values())
    match schema["type"]:
        case "integer":
            return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
        case "string":
            return len(value) <= schema.get("maxLength", len(value))
        case "array":
            return len(value) <= schema["maxItems"] and all(conforms(one, schema["items"]) for one in value)
        case "object":
            properties = schema["properties"]
            return [*value] == [*properties] and all(conforms(value[key], one) for key, one in properties.items())
    return True
