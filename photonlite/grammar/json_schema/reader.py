"""Reads a JSON Schema (a subset of draft 2020-12) into a pattern, and refuses everything that would not be enforced.

An object has the properties of its schema in their order and no others; those that are not required may be missing.
Values that no schema describes (`true`, `{}`, an object without properties) may be anything down to a few levels. Boxes
and points are objects with the format "box" or "point": two or three tokens that carry numbers.

A schema that holds itself is written out to a depth: its keyword "maxDepth", or `RECURSION`. Where that is reached,
nothing fits the reference: a choice loses that branch, a list its items, an object the property unless it is required.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from photonlite.errors import GrammarError, GrammarTooLargeError, SchemaError
from photonlite.grammar.automata.alphabet import BOX, LISTED_BOX, LISTED_POINT, POINT
from photonlite.grammar.json_schema.disjoint import disjoint, tags_of
from photonlite.grammar.json_schema.keywords import (
    BY_TYPE,
    WHOLE,
    Schema,
    below,
    check_known,
    count_of,
    decimal_of,
    mapping_of,
    named,
    names_of,
    range_of,
    refuse,
    resolved,
    rules_of,
    sequence_of,
    types_of,
)
from photonlite.grammar.json_schema.scalars import MAX_ENUM, number_of, string_of, values_of
from photonlite.grammar.json_schema.text import anything, bracketed, entries, entry, items, mapping
from photonlite.grammar.json_schema.unique import unique_items
from photonlite.grammar.regex.fragment import Fragment, either, literal

RECURSION = 4  # how often a schema stands in itself, the outermost included, unless it has the keyword "maxDepth"
MAX_RECURSION = 10
MAX_REFERENCES = 20_000  # that are followed
MAX_NESTING = 32  # schemas inside one another, those behind references included
_FREE_DEPTH = 2  # lists and objects inside one another in a value that no schema describes

_NATIVE = {"box": literal(BOX), "point": literal(POINT)}
_LISTED = {"box": literal(LISTED_BOX), "point": literal(LISTED_POINT)}
_FIELDS = {"box": ("x_min", "y_min", "x_max", "y_max", "score"), "point": ("x", "y", "score")}

ANY_OBJECT = mapping(anything(3)).text  # with lists and objects at most four deep


class _TooDeepError(SchemaError):
    """A schema stands in itself more often than it may: what holds this reference has to do without it."""


def read_schema(schema: Schema, *, listed: bool = False) -> tuple[str, bool]:
    """Return the pattern of a schema, for a native `compile_dfa`, and whether objects may have names of any kind.

    With `listed`, boxes and points are lists of whole numbers.
    """
    reader = _Reader(schema, _LISTED if listed else _NATIVE)
    try:
        return reader.read(schema, "", 0).text, reader.free_names
    except _TooDeepError as error:
        raise SchemaError(str(error), error.keyword, error.where) from None


class _Reader:
    """Reads one schema. `where` is the JSON pointer to a schema in it, `depth` the number of schemas around that.

    `tags` are the discriminators of `oneOf`s around a schema: required even with defaults, to tell the branches apart.
    """

    def __init__(self, root: Schema, places: Mapping[str, Fragment]) -> None:
        self._places = places
        self.free_names = False
        self._root = root
        self._open = Counter({"": 1})  # how many schemas around the one being read have a place
        self._met: set[str] = set()  # places that references in the one being read lead to
        self._followed = 0
        self._known: dict[tuple[str, tuple[str, ...]], list[_Known]] = {}
        self._kinds: dict[str, Callable[[Schema, str, int], Fragment]] = {
            "string": lambda schema, where, _: string_of(schema, where),
            "integer": lambda schema, where, _: number_of(schema, where, whole=True),
            "number": lambda schema, where, _: number_of(schema, where, whole=False),
            "object": self._object,
            "array": self._array,
            "boolean": lambda *_: either([literal("true"), literal("false")]),
            "null": lambda *_: literal("null"),
        }

    def read(self, schema: Any, where: str, depth: int, tags: tuple[str, ...] = ()) -> Fragment:
        if depth > MAX_NESTING:
            itself = any(times > 1 for times in self._open.values())
            advice = "give it a maxDepth of 2 or 3" if itself else "make it flatter"
            raise GrammarTooLargeError(f"the schema is nested more than {MAX_NESTING} deep at {named(where)}: {advice}")
        if schema is True:
            return self._anything(_FREE_DEPTH)
        if not isinstance(schema, Mapping):
            refuse("nothing may stand here, or it is not a schema: give an object with keywords, or true", "", where)
        check_known(schema, where)
        for keyword in ("$defs", "definitions"):
            mapping_of(schema, keyword, where)
        whole = [keyword for keyword in WHOLE if keyword in schema]
        if not whole:
            return self._typed(schema, where, depth, tags)
        others = rules_of(schema) - {whole[0]}
        if whole[0] in ("enum", "const"):
            others -= {"type"}
        if others:
            refuse(f"stands beside {whole[0]!r}, and cannot be combined with it: give one of them", min(others), where)
        return self._whole(whole[0], schema, where, depth, tags)

    def _whole(self, keyword: str, schema: Schema, where: str, depth: int, tags: tuple[str, ...]) -> Fragment:
        if keyword == "$ref":
            return self._reference(schema, where, depth, tags)
        if keyword == "const":
            return values_of([schema["const"]], schema, keyword, where)
        branches = sequence_of(schema, keyword, where)
        if not branches:
            refuse("is empty, and nothing would be allowed", keyword, where)
        if keyword == "enum":
            return values_of(list(branches), schema, keyword, where)
        if keyword == "allOf" and len(branches) > 1:
            refuse("several schemas cannot be held at once: write them as one", keyword, where)
        if len(branches) > MAX_ENUM:
            raise GrammarTooLargeError(
                f"{keyword!r} at {named(where)} has {len(branches)} schemas: the limit is {MAX_ENUM}"
            )
        tag = None
        if keyword == "oneOf":
            named_by = mapping_of(schema, "discriminator", where).get("propertyName")
            tag = named_by if isinstance(named_by, str) else None
            self._tell_apart(branches, tag, where)
        inner = tags if tag is None else (*tags, tag)
        places = [below(where, keyword, k) for k in range(len(branches))]
        return _possible(
            partial(self.read, each, place, depth + 1, inner) for each, place in zip(branches, places, strict=True)
        )

    def _tell_apart(self, branches: Sequence[Any], tag: str | None, where: str) -> None:
        limit = 64
        if len(branches) > limit:
            raise GrammarTooLargeError(
                f"'oneOf' at {named(where)} has {len(branches)} schemas: the limit is {limit}; use anyOf"
            )
        tags = [None if tag is None else tags_of(self._root, each, tag, where) for each in branches]
        for second in range(len(branches)):
            for first in range(second):
                one, other = tags[first], tags[second]
                if one is not None and other is not None and not one & other:
                    continue
                if not disjoint(self._root, branches[first], branches[second], below(where, "oneOf", second)):
                    refuse(f"schemas {first} and {second} may hold for one value both: use anyOf", "oneOf", where)

    def _reference(self, schema: Schema, where: str, depth: int, tags: tuple[str, ...]) -> Fragment:
        target, place = resolved(self._root, schema, where)
        self._met.add(place)
        levels = _levels(target, place)
        if self._open[place] >= levels:
            raise _TooDeepError(
                f"'$ref' at {named(where)}: {schema['$ref']!r} leads back to itself, and no answer ends within "
                f"{levels} levels: make it optional, or set its maxDepth, at most {MAX_RECURSION}",
                "$ref",
                where,
            )
        # What is read depends on how often the places that its references lead to are open already.
        known = self._known.setdefault((place, tags), [])
        found = next((one for one in known if all(self._open[each] == times for each, times in one.opened)), None)
        if found is None:
            found = self._followed_to(target, place, depth, tags)
            known.append(found)
        self._met.update(each for each, _ in found.opened)
        if isinstance(found.read, _TooDeepError):
            raise found.read
        return found.read

    def _followed_to(self, target: Any, place: str, depth: int, tags: tuple[str, ...]) -> "_Known":
        self._followed += 1
        if self._followed > MAX_REFERENCES:
            raise GrammarTooLargeError(
                f"the schema holds itself in over {MAX_REFERENCES} ways: lower maxDepth, or write it out"
            )
        around, self._met = self._met, set()
        self._open[place] += 1
        read: Fragment | _TooDeepError
        try:
            read = self.read(target, place, depth + 1, tags)
        except _TooDeepError as error:
            read = error.with_traceback(None)
        self._open[place] -= 1
        met, self._met = self._met, around
        return _Known(tuple((each, self._open[each]) for each in met), read)

    def _typed(self, schema: Schema, where: str, depth: int, tags: tuple[str, ...]) -> Fragment:
        if named_tags := [tag for tag in tags if tag in mapping_of(schema, "properties", where)]:
            schema = {**schema, "required": [*names_of(schema, "required", where), *named_tags]}
        used = rules_of(schema) - {"type"}
        types = types_of(schema, where)
        if not types:
            if not used:
                return self._anything(_FREE_DEPTH)
            # Keywords hold for values of their type only; that type alone is a part of what may stand.
            types = tuple(name for name in ("string", "number", "object", "array") if used <= set(BY_TYPE[name]))[:1]
        for keyword in sorted(used):
            if not any(keyword in BY_TYPE[name] for name in types):
                refuse("is about none of the types here: leave it out, or name the type", keyword, where)
        return _possible(partial(self._kinds[name], schema, where, depth) for name in types)

    def _unless_too_deep(self, schema: Any, where: str, depth: int, *, needed: bool = False) -> Fragment | None:
        """Read a schema that something may do without, unless it is needed."""
        try:
            return self.read(schema, where, depth)
        except _TooDeepError:
            if needed:
                raise
            return None

    def _anything(self, depth: int) -> Fragment:
        self.free_names = True
        return anything(depth)

    def _object(self, schema: Schema, where: str, depth: int) -> Fragment:
        if "format" in schema:
            native = schema["format"]
            if not isinstance(native, str) or native not in self._places:
                refuse(f"{native!r:.100} is not a format of an object: there are {', '.join(_NATIVE)}", "format", where)
            self._check_native(schema, native, where)
            return self._places[native]
        properties = mapping_of(schema, "properties", where)
        required = set(names_of(schema, "required", where))
        others = schema.get("additionalProperties")
        if not isinstance(others, bool | Mapping | None):
            refuse("must be a schema", "additionalProperties", where)
        if missing := sorted(required - properties.keys()):
            refuse(f"{missing[0]!r} is required but has no schema in properties", "required", where)
        if "properties" not in schema and others is not False:
            place = below(where, "additionalProperties")
            self.free_names = True
            if others in (None, True, {}):
                return mapping(anything(_FREE_DEPTH - 1))
            inner = self._unless_too_deep(others, place, depth + 1)
            return literal("{}") if inner is None else mapping(inner)
        if others not in (None, False, True, {}):
            refuse("an answer would hold the named properties only: leave it out", "additionalProperties", where)
        held = []
        for name in properties:
            try:
                held.append((self._property(schema, name, where, depth), name in required))
            except _TooDeepError:
                if name in required:
                    raise
        return bracketed("{", entries(held), "}")

    def _check_native(self, schema: Schema, native: str, where: str) -> None:
        """Refuse what a box or a point does not have; describing what it has is allowed."""
        fields = _FIELDS[native]
        for keyword in ("properties", "required"):
            names = (mapping_of if keyword == "properties" else names_of)(schema, keyword, where)
            if others := [name for name in names if name not in fields]:
                refuse(f"a {native} has {', '.join(fields)}, and no {others[0]!r:.60}", keyword, where)
        for name, inner in mapping_of(schema, "properties", where).items():
            place = below(where, "properties", name)
            if not isinstance(inner, Mapping) or types_of(inner, place) not in ((), ("number",)):
                refuse(f"of a {native} all are numbers", "type", place)
            if others := [keyword for keyword in inner if not _allows_places(inner, keyword, place)]:
                refuse(f"the numbers of a {native} are any from 0 to 1: leave it out", others[0], place)

    def _property(self, schema: Schema, name: str, where: str, depth: int) -> Fragment:
        place = below(where, "properties", name)
        try:
            return entry(name, self.read(schema["properties"][name], place, depth + 1))
        except (SchemaError, GrammarTooLargeError):
            raise
        except GrammarError as cause:
            refuse(f"the name cannot be spelled: {cause}", "properties", where, cause)

    def _array(self, schema: Schema, where: str, depth: int) -> Fragment:
        low, high = range_of(schema, "minItems", "maxItems", where)
        first = sequence_of(schema, "prefixItems", where)
        unique = schema.get("uniqueItems", False)
        if not isinstance(unique, bool) or (unique and first and high not in (0, 1)):
            refuse("must be true or false, and cannot be held beside prefixItems: leave it out", "uniqueItems", where)
        given = schema.get("items", "prefixItems" not in schema)
        if given is False:
            if low > len(first):
                refuse(f"{low} items are wanted, but there are schemas for {len(first)}", "minItems", where)
            high = len(first) if high is None else min(high, len(first))
        prefix: list[Fragment] = []
        for place, each in enumerate(first):
            one = self._unless_too_deep(each, below(where, "prefixItems", place), depth + 1, needed=place < low)
            if one is None:
                return items(prefix, None, low, place if high is None else min(high, place))
            prefix.append(one)
        needed = low > len(first)
        item = None if given is False else self._unless_too_deep(given, below(where, "items"), depth + 1, needed=needed)
        if unique and item is not None and high not in (0, 1):
            return unique_items(self._root, given, low, high, where)
        return items(prefix, item, low, high)


@dataclass(frozen=True, slots=True)
class _Known:
    """What a reference was read as, where each place that it leads to was open so many times."""

    opened: tuple[tuple[str, int], ...]
    read: "Fragment | _TooDeepError"


def _allows_places(schema: Schema, keyword: str, where: str) -> bool:
    """Whether a keyword allows all numbers that boxes and points have: from 0 to 1."""
    if keyword in ("minimum", "maximum"):
        bound = decimal_of(schema, keyword, where)
        return bound is not None and (bound <= 0 if keyword == "minimum" else bound >= 1)
    return keyword not in rules_of(schema) - {"type"}


def _possible(ways: Iterable[Callable[[], Fragment]]) -> Fragment:
    """Match what any of some ways allows; raises as the last one where all are too deep."""
    found, error = [], None
    for read in ways:
        try:
            found.append(read())
        except _TooDeepError as too_deep:
            error = too_deep
    if not found and error is not None:
        raise error
    return either(found)


def _levels(target: Any, place: str) -> int:
    """Return how often a schema may stand in itself."""
    if not isinstance(target, Mapping) or "maxDepth" not in target:
        return RECURSION
    levels = count_of(target, "maxDepth", place)
    if levels is None or not 1 <= levels <= MAX_RECURSION:
        refuse(f"{levels} levels of a schema in itself: the limit is {MAX_RECURSION}", "maxDepth", place)
    return levels
