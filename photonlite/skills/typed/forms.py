"""The forms of a typed answer, in all the ways in which Python spells them.

```
schema   a pydantic model, dataclass, TypedDict, Enum, Literal[...], list[...], X | None ...    objects of that type
         a JSON Schema as a dict or as text; `dict` for any JSON object                         plain values
regex    a pattern                                                                              text
choices  a list of texts                                                                        one of them
```

Terms of outlines may stand for each of these, and are recognised by their attributes.
"""

import functools
import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation
from pydantic_core import SchemaError as CoreSchemaError

from photonlite.errors import GrammarError, GrammarTooLargeError, SchemaError
from photonlite.grammar.decoding.choices import MAX_CHOICES
from photonlite.grammar.spec import GrammarSpec

MAX_SCHEMA_CHARACTERS = 1_000_000
MAX_CHOICE_CHARACTERS = 1_000
MAX_CHOICES_CHARACTERS = 200_000
"""Limit of all choices together: their tree takes a second and a hundred megabytes."""

_UNUSABLE = (PydanticUndefinedAnnotation, CoreSchemaError)


@dataclass(frozen=True)
class TextForm:
    spec: GrammarSpec
    read: Callable[[str], Any]  # turns the text into its value
    spelled: bool = False  # the text is the value; else results have both


@dataclass(frozen=True)
class ChoicesForm:
    choices: tuple[str, ...]


Form: TypeAlias = TextForm | ChoicesForm


def form_of(schema: Any, choices: Any, regex: Any) -> Form | None:
    """Return the form of an answer, None for plain text; at most one argument is not None. Raises a GrammarError."""
    given = {"schema": schema, "choices": choices, "regex": regex}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise GrammarError(f"{' and '.join(names)} were given: an answer keeps to one of schema, choices and regex")
    if not names:
        return None
    name, value = names[0], given[names[0]]
    if type(value).__module__.partition(".")[0] == "outlines":
        name, value = _unwrapped(value)
    return {"schema": _schema, "choices": _choices, "regex": _regex}[name](value)


def _unwrapped(term: Any) -> tuple[str, Any]:
    for name, attribute, kind in (("regex", "pattern", str), ("schema", "schema", str), ("choices", "items", list)):
        if isinstance(said := getattr(term, attribute, None), kind):
            return name, said
    to_regex = getattr(sys.modules.get(type(term).__module__), "to_regex", None)
    try:
        if to_regex is not None:
            return "regex", to_regex(term)
    except (TypeError, NotImplementedError, ValueError) as cause:
        raise GrammarError(f"outlines cannot write the term {term!r:.80} as a pattern: {cause}") from cause
    raise GrammarError(f"{term!r:.80} is neither a schema nor a pattern nor choices: give one of these")


def _regex(pattern: Any) -> Form:
    if isinstance(pattern, re.Pattern):
        if not isinstance(pattern.pattern, str) or pattern.flags & ~re.UNICODE:
            raise GrammarError(
                "regex was compiled for bytes or with flags, which cannot be enforced: give the pattern as "
                "text without flags, with both cases written out, such as [aA]"
            )
        pattern = pattern.pattern
    if not isinstance(pattern, str):
        raise GrammarError(f"regex is of type {type(pattern).__name__}: give a pattern as text")
    return TextForm(GrammarSpec("regex", pattern), str, spelled=True)


def _choices(choices: Any) -> Form:
    if isinstance(choices, str | bytes | Mapping) or not isinstance(choices, Iterable):
        raise GrammarError(f"choices is of type {type(choices).__name__}: give a list of texts such as ['yes', 'no']")
    texts = tuple(choices)
    if not texts:
        raise GrammarError("choices is empty: give at least one text")
    for text in texts:
        if not isinstance(text, str):
            raise GrammarError(f"a choice is of type {type(text).__name__}: give texts")
        if not text.strip():
            raise GrammarError("a choice is empty: give texts with a character that is not white space")
    lengths = list(map(len, texts))
    for what, size, limit, advice in (
        ("there are {} choices", len(texts), MAX_CHOICES, "give fewer"),
        ("a choice has {} characters", max(lengths), MAX_CHOICE_CHARACTERS, "shorten it"),
        ("the choices have {} characters together", sum(lengths), MAX_CHOICES_CHARACTERS, "give fewer or shorter ones"),
    ):
        if size > limit:
            raise GrammarTooLargeError(f"{what.format(size)}, over the limit of {limit}: {advice}")
    if len(set(texts)) < len(texts):
        twice = Counter(texts).most_common(1)[0][0]
        raise GrammarError(f"the choice {twice[:60]!r} is given twice: give each once")
    # A member of a str Enum becomes plain text.
    return ChoicesForm(tuple(map(str.__str__, texts)))


def _schema(schema: Any) -> Form:
    if schema is dict:
        return TextForm(GrammarSpec("object"), json.loads)
    if isinstance(schema, str):
        schema = _parsed(schema)
    if isinstance(schema, Mapping):
        return TextForm(_spec(schema), json.loads)
    try:
        hash(schema)
    except TypeError:
        return _of_type(schema)
    return _of_known_type(schema)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise SchemaError(f"the name {name!r:.60} stands twice in an object of the schema: take one of them out")
    return read


def _parsed(text: str) -> Mapping[str, Any]:
    _check_length(text)
    try:
        schema = json.loads(text.removeprefix("\ufeff"), object_pairs_hook=_object)
    except RecursionError as cause:
        raise GrammarTooLargeError("the schema is nested too deeply to be read: make it flatter") from cause
    except json.JSONDecodeError as cause:
        raise SchemaError(f"the schema is not JSON: {cause}; give a JSON Schema, a dict or a type") from cause
    if not isinstance(schema, dict):
        raise SchemaError(f"the schema is a JSON {type(schema).__name__}: give an object")
    return schema


def _spec(schema: Mapping[str, Any]) -> GrammarSpec:
    """Write a schema as text, in its own order, which answers have too."""
    try:
        text = json.dumps(dict(schema), separators=(",", ":"), allow_nan=False)
    except RecursionError as cause:
        raise GrammarTooLargeError("the schema is nested too deeply, or in itself: make it flatter") from cause
    except (TypeError, ValueError) as cause:
        raise SchemaError(
            f"the schema cannot be written as JSON: {cause}; for properties of Python types give a pydantic model or a "
            "TypedDict in its place"
        ) from cause
    return GrammarSpec("schema", _check_length(text))


def _check_length(text: str) -> str:
    if len(text) > MAX_SCHEMA_CHARACTERS:
        raise GrammarTooLargeError(
            f"the schema has {len(text)} characters, over the limit of {MAX_SCHEMA_CHARACTERS}: make it smaller"
        )
    return text


def _of_type(kind: Any) -> TextForm:
    if inspect.isroutine(kind):  # pydantic would call it with validated arguments
        raise _no_schema(kind, "it is a function.")
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        schema = adapter.json_schema()
    except PydanticUserError as cause:
        if cause.code != "typed-dict-version":
            raise _no_schema(kind, str(cause).splitlines()[0]) from cause
        raise SchemaError(
            f"{kind!r:.80} is a TypedDict of typing, which pydantic cannot read before Python 3.12: write `from "
            "typing_extensions import TypedDict` where it is defined"
        ) from cause
    except _UNUSABLE as cause:
        raise _no_schema(kind, str(cause).splitlines()[0]) from cause
    return TextForm(_spec(schema), functools.partial(_validated, adapter))


def _no_schema(kind: Any, reason: str) -> SchemaError:
    return SchemaError(
        f"{kind!r:.80} has no JSON schema: {reason} Give a pydantic model, a dataclass, a TypedDict, an Enum, a type "
        "such as list[int] or Literal['a', 'b'], or a JSON Schema"
    )


# Loops ask for the same type, and pydantic takes milliseconds for it.
_of_known_type = functools.lru_cache(maxsize=128)(_of_type)


def _validated(adapter: TypeAdapter[Any], text: str) -> Any:
    try:
        return adapter.validate_json(text)
    except ValidationError as cause:
        # The answer keeps to the schema: this is a rule that the schema does not state.
        raise SchemaError(
            f"the answer {text[:200]} keeps to the type's JSON schema, but not to its validators: "
            f"{complaint(cause)}; state the rule in the schema, drop it, or allow more retries"
        ) from cause


def complaint(error: ValidationError) -> str:
    """Return what validators found wrong, and where, in at most 300 characters."""
    found = error.errors(include_url=False, include_context=False, include_input=False)[:5]
    return "; ".join(f"{one['msg']} (at {'.'.join(map(str, one['loc'])) or 'the top'})" for one in found)[:300]
