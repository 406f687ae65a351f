"""The objects of the nano checkpoint, from `objects.txt` to `assets/nano/objects.json`.

`python -m bench.nano.scenes.objects` writes the file; the place of an object in it is its class index everywhere else.
"""

import functools
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.nano import ROOT
from bench.nano.scenes.english import pluralize

SOURCE = Path(__file__).parent / "objects.txt"
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "brown", "black", "white", "pink")
OBJECTS_JSON = ROOT / "assets" / "nano" / "objects.json"


@dataclass(frozen=True)
class SceneObject:
    """One kind of object: its emoji and its names, all in lower case."""

    codepoint: str  # "U+1F34C", or "U+2602 U+FE0F" where the emoji needs the variation selector
    emoji: str
    name: str
    plural: str
    synonyms: tuple[str, ...]
    category: str

    @property
    def names(self) -> tuple[str, ...]:
        """The name and the synonyms, in the singular."""
        return (self.name, *self.synonyms)

    @functools.cached_property
    def plurals(self) -> tuple[str, ...]:
        """The plurals of `names`, in the same order."""
        return (self.plural, *(pluralize(synonym) for synonym in self.synonyms))


def parse_objects(text: str) -> list[SceneObject]:
    """Read the table: `# category` lines, then `emoji | name[/plural] | synonym, synonym`."""
    objects: list[SceneObject] = []
    category = ""
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("# "):
            category = line[2:]
            continue
        emoji, names, synonyms = (field.strip() for field in line.split("|"))
        name, _, plural = names.partition("/")
        words = tuple(word.strip() for word in synonyms.split(",") if word.strip())
        codepoint = " ".join(f"U+{ord(char):04X}" for char in emoji)
        objects.append(SceneObject(codepoint, emoji, name, plural or pluralize(name), words, category))
    check_unique(objects)
    return objects


def check_unique(objects: Iterable[SceneObject]) -> None:
    """Raise ValueError if a word names two objects."""
    owner: dict[str, str] = {}
    for item in objects:
        lowered = [name.lower() for name in item.names]
        if len(set(lowered)) < len(lowered):
            raise ValueError(f"{item.name}: a name is repeated in {lowered}")
        for word in {*lowered, *(plural.lower() for plural in item.plurals)}:
            if word in owner:
                raise ValueError(f"{word!r} names both {owner[word]} and {item.name}")
            owner[word] = item.name


@functools.cache
def load_objects() -> tuple[SceneObject, ...]:
    """Return all objects in the order of their class index."""
    return tuple(parse_objects(SOURCE.read_text(encoding="utf-8")))


def index_of(word: str) -> int | None:
    """Return the class index of a name, synonym or plural (any case), None for other words."""
    wanted = word.lower()
    found = (index for index, item in enumerate(load_objects()) if wanted in item.names or wanted in item.plurals)
    return next(found, None)


def to_json(objects: Iterable[SceneObject]) -> str:
    """Return the text of objects.json: one object a line, so that changes read well."""
    lines = [json.dumps(asdict(item), ensure_ascii=False) for item in objects]
    return "[\n" + ",\n".join(lines) + "\n]\n"


if __name__ == "__main__":
    OBJECTS_JSON.write_text(to_json(load_objects()), encoding="utf-8")
