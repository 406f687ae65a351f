"""Prompts of Qwen-VL: what its makers ask in words, in turns of a conversation; images stand in front of the question.

```
caption    image  "Describe this image ..."            query    images  question
detect     image  "Locate every instance ... bbox"     point    image  "... point"
```
"""

import functools
from collections.abc import Sequence
from typing import Never

from photonlite.errors import UnsupportedSkillError
from photonlite.grammar.decoding.grammars import NO_ID, PathIds, Vocabulary
from photonlite.grammar.decoding.items import ItemFormat
from photonlite.grammar.prompts import PlaceKind, Places, Size
from photonlite.models.prompting import TokenizedText, caption_question, refuse_reasoning, refuse_references
from photonlite.models.qwen import boxes
from photonlite.models.qwen.boxes import ItemSpelling
from photonlite.models.qwen.config import QwenConfig
from photonlite.models.qwen.images import ImageSettings
from photonlite.models.qwen.template import END, END_OF_TEXT, ChatTemplate
from photonlite.models.tokenizer import Tokenizer
from photonlite.request import IMAGE, Token, Turn

SKILLS = ("caption", "query", "detect", "point")

_CAPTIONS = {
    "short": "Describe this image in one short sentence.",
    "normal": "Describe this image.",
    "long": "Describe this image in detail.",
}


class QwenPrompts(TokenizedText):
    """Encodes prompts for one checkpoint and decodes its text.

    Prompts raise UnsupportedSkillError for what the family does not do, and PromptError for text that cannot be
    encoded.
    """

    skills = SKILLS

    def __init__(
        self,
        config: QwenConfig,
        images: ImageSettings,
        tokenizer: Tokenizer,
        template: str | None = None,
        ends: Sequence[int] = (),  # ids that end an answer, beside those that every checkpoint has
    ) -> None:
        self._config, self._images, self._tokenizer, self._ends = config, images, tokenizer, tuple(ends)
        self._template = ChatTemplate(tokenizer, config, template)
        self._spelling = ItemSpelling(tokenizer, tokenizer.special[END])
        self.max_context, self.vocab_size = config.text.max_context, config.text.vocab_size
        self.prefix_length = 0

    @property
    def inline(self) -> "QwenPrompts":
        return self

    @property
    def conversations(self) -> "QwenPrompts":
        return self

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        end, *others = self._tokenizer.special[END], self._tokenizer.special[END_OF_TEXT], *self._ends
        return Vocabulary(
            end=end,
            answer=NO_ID,
            coordinate=self._config.image_id,
            size=self._config.vision_start_id,
            other_ends=tuple(dict.fromkeys(index for index in others if index != end)),
            digits=self._spelling.digits,
        )

    @property
    def path_ids(self) -> PathIds:
        raise UnsupportedSkillError("this family draws no outlines: ask for boxes with detect")

    # ---- prompts

    def caption(self, length: str) -> tuple[Token, ...]:
        """Return the prompt for a description; SettingsError for an unknown length."""
        return self._ask(caption_question(_CAPTIONS, length))

    def query(self, question: str, *, reasoning: bool, refs: Places, images: int = 1) -> tuple[Token, ...]:
        """Return the prompt for a question about so many images."""
        refuse_reasoning(reasoning)
        refuse_references(refs)
        return self._ask(question, images)

    def detect(self, subject: str) -> tuple[Token, ...]:
        return self._ask(boxes.question("detect", subject, self._config.version))

    def point(self, subject: str, *, refs: Places) -> tuple[Token, ...]:
        refuse_references(refs)
        return self._ask(boxes.question("point", subject, self._config.version))

    def segment(self, subject: str, *, refs: Places) -> tuple[Token, ...]:
        raise UnsupportedSkillError(f"this checkpoint was not trained for segment; it has {', '.join(SKILLS)}")

    def chat(self, turns: Sequence[Turn]) -> tuple[Token, ...]:
        """Return the prompt for the next turn of a conversation."""
        first, *others = self._template.encode(turns)
        return (*map(Token, first), *(token for piece in others for token in (IMAGE, *map(Token, piece))))

    def encode(self) -> tuple[Token, ...]:
        """Return the beginning of prompts about one image, up to its end."""
        prompt = self._ask("?")
        return prompt[: prompt.index(IMAGE) + 1]

    def _ask(self, question: str, images: int = 1) -> tuple[Token, ...]:
        return self.chat([Turn("user", (*[None] * images, question))])

    # ---- images, and places in them

    @property
    def least_positions(self) -> int:
        return self._images.least_positions

    def positions_of(self, size: Size) -> tuple[int, int]:
        return self._images.positions_of(size)

    def format(self, kind: PlaceKind, subject: str) -> ItemFormat:
        return self._spelling.format(kind, subject)

    def mask(self, codes: Sequence[int]) -> Never:
        raise UnsupportedSkillError("this family draws no outlines: ask for boxes with detect")

    def bounds(self, kind: PlaceKind, size: Size) -> tuple[int, ...]:
        rows, columns = self.positions_of(size)
        factor = self._images.factor
        return boxes.bounds(kind, self._config.version, (columns * factor, rows * factor))
