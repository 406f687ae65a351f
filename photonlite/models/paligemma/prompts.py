"""Prompts of PaliGemma: a task in a few words behind the image; all of it attends to itself in both directions.

```
caption   image bos "caption en" new-line       detect    image bos "detect mug ; plate" new-line
long      image bos "describe en" new-line      segment   image bos "segment mug" new-line
query     image bos "answer en Why?" new-line   the question "ocr" is a task of its own: image bos "ocr" new-line
```
"""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from photonlite.errors import CheckpointError, ImageError, PromptError, UnsupportedSkillError
from photonlite.grammar.decoding.corners import CornerIds, CornersFormat
from photonlite.grammar.decoding.grammars import NO_ID, PathIds, Vocabulary
from photonlite.grammar.prompts import PlaceKind, Places, Size
from photonlite.models.paligemma.config import PaliGemmaConfig
from photonlite.models.paligemma.images import SquareImages
from photonlite.models.paligemma.masks import CODES
from photonlite.models.paligemma.model import LOCATIONS
from photonlite.models.prompting import TokenizedText, caption_question, refuse_reasoning, refuse_references
from photonlite.models.tokenizer import Tokenizer
from photonlite.request import IMAGE, Token

SKILLS = ("caption", "query", "detect")
CONTROL_NAMES = r"<(loc\d{4}|seg\d{3}|image)>"
"""Added tokens that text is never encoded to."""

_CAPTIONS = {"short": "caption en", "normal": "caption en", "long": "describe en"}
_OCR = "ocr"
_SEPARATOR = ";"  # between the names of a list
_MASK_CODES = 128

DecodeMask = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float32]]


class PaliGemmaPrompts(TokenizedText):
    """Encodes prompts for one checkpoint and decodes its text; `decode_mask` is None without a decoder of outlines.

    Prompts raise UnsupportedSkillError for what the family does not do, and PromptError for text that cannot be
    encoded.
    """

    conversations = None
    prefix_length = 0

    def __init__(
        self, config: PaliGemmaConfig, tokenizer: Tokenizer, decode_mask: DecodeMask | None, no_masks: str = ""
    ) -> None:
        self._config, self._tokenizer, self._decode_mask = config, tokenizer, decode_mask
        self._no_masks = no_masks  # says how to get a decoder of outlines
        self._images = SquareImages.of(config.vision)
        self.max_context, self.vocab_size = config.text.max_context, config.text.vocab_size
        self.skills = (*SKILLS, "segment") if decode_mask is not None else SKILLS
        codes = _numbered(tokenizer, "seg", 3, _MASK_CODES)
        self._ids = CornerIds(_numbered(tokenizer, "loc", 4, LOCATIONS), codes, config.end_id)

    @property
    def inline(self) -> "PaliGemmaPrompts":
        return self

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        # Places stand in lists alone: typed answers have none.
        return Vocabulary(end=self._config.end_id, answer=NO_ID, coordinate=NO_ID, size=NO_ID)

    @property
    def first_location(self) -> int:
        return self._ids.coordinates[0]

    @property
    def path_ids(self) -> PathIds:
        raise UnsupportedSkillError("this family writes no paths: its outlines are codes of masks")

    # ---- prompts

    def caption(self, length: str) -> tuple[Token, ...]:
        """Return the prompt for a description; SettingsError for an unknown length."""
        return self._ask(caption_question(_CAPTIONS, length))

    def query(self, question: str, *, reasoning: bool, refs: Places, images: int = 1) -> tuple[Token, ...]:
        """Return the prompt for a question about one image; the question "ocr" asks for the text in it."""
        refuse_reasoning(reasoning)
        if images == 0:
            raise ImageError("there is no image: this model answers about one, hand it in")
        refuse_references(refs)
        return self._ask(_OCR if question.lower() == _OCR else f"answer en {question}")

    def detect(self, subject: str) -> tuple[Token, ...]:
        return self._ask(f"detect {_joined(subject)}")

    def point(self, subject: str, *, refs: Places) -> tuple[Token, ...]:
        raise UnsupportedSkillError(f"this checkpoint was not trained for point; it has {', '.join(self.skills)}")

    def segment(self, subject: str, *, refs: Places) -> tuple[Token, ...]:
        if self._decode_mask is None:
            raise UnsupportedSkillError(f"outlines of this model need a decoder of masks: {self._no_masks}")
        refuse_references(refs)
        return self._ask(f"segment {_joined(subject)}")

    def encode(self) -> tuple[Token, ...]:
        """Return nothing: what is computed for an image depends on the words behind it."""
        return ()

    def _ask(self, text: str) -> tuple[Token, ...]:
        return (IMAGE, Token(self._config.bos_id), *map(Token, self._tokenizer.encode(f"{text}\n")))

    # ---- images, and places in them

    @property
    def least_positions(self) -> int:
        return self._images.grid**2

    def positions_of(self, size: Size) -> tuple[int, int]:
        return self._images.positions_of(size)

    def format(self, kind: PlaceKind, subject: str) -> CornersFormat:
        """Return how items are spelled, of one label or of several that ";" separates."""
        labels = _labels(subject)
        more = tuple(tuple(self._tokenizer.spell(f" {label} {_SEPARATOR} ")) for label in labels)
        last = tuple((*self._tokenizer.spell(f" {label}"), self._config.end_id) for label in labels)
        return CornersFormat(self._ids, labels, more, last, CODES if kind == "segment" else 0)

    def bounds(self, kind: PlaceKind, size: Size) -> tuple[int, ...]:
        return ()

    def mask(self, codes: Sequence[int]) -> npt.NDArray[np.float32]:
        if self._decode_mask is None:
            raise UnsupportedSkillError(f"outlines of this model need a decoder of masks: {self._no_masks}")
        return self._decode_mask(np.array(codes, np.int64) - self._ids.codes[0])


def _labels(subject: str) -> tuple[str, ...]:
    labels = tuple(dict.fromkeys(filter(None, map(str.strip, subject.split(_SEPARATOR)))))
    if not labels:
        raise PromptError(f"the object {subject!r:.60} names nothing: write names, with {_SEPARATOR!r} between several")
    return labels


def _joined(subject: str) -> str:
    return f" {_SEPARATOR} ".join(_labels(subject))


def _numbered(tokenizer: Tokenizer, name: str, digits: int, count: int) -> tuple[int, ...]:
    """Return the ids of tokens such as <loc0000>; CheckpointError unless all are there, one after the other."""
    ids = [tokenizer.added.get(f"<{name}{number:0{digits}}>") for number in range(count)]
    first = ids[0]
    if first is None or ids != list(range(first, first + count)):
        raise CheckpointError(
            f"tokenizer.json lacks some of the {count} tokens from <{name}{0:0{digits}}> on, or has them in another "
            "order: use the one of this checkpoint"
        )
    return tuple(range(first, first + count))
