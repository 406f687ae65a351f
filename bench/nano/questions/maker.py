"""Questions about composed scenes and their answers as tensors, made on the device by table look-up.

Every text that can appear is tokenised once, in pieces, on the host. One call makes one question per slot for every
scene, with static shapes and without waiting for the device.
"""

import random

import torch
from tokenizers import Tokenizer

from bench.nano.questions import mix
from bench.nano.questions.captions import LONG, Captions
from bench.nano.questions.choices import Kinds, chance, relate
from bench.nano.questions.grounding import GroundingMaker, Vocabulary
from bench.nano.questions.layout import (
    ANSWER,
    ARGUMENT,
    BOS,
    SKILL,
    THINK,
    Part,
    Questions,
    join_parts,
    masked,
    padded,
    scalar,
    select_rows,
    slots,
    token,
)
from bench.nano.questions.names import Answers, Names
from bench.nano.questions.queries import Queries, QueryMaker
from bench.nano.questions.typed import named
from bench.nano.questions.typed.maker import TypedMaker
from bench.nano.questions.typed.named import NamedMaker
from bench.nano.questions.wording import Wording
from bench.nano.scenes.batched.compose import Scenes
from bench.nano.scenes.batched.layouts import MAX_KINDS, MAX_OBJECTS
from bench.nano.scenes.objects import load_objects

MAX_VERTICES = 32
_CAPTION_LENGTHS = ("short", "normal", "long")
_SHORT_SLOTS = [slot for slot in mix.ROW if slot in mix.QUERIES]
_ASKED_SLOTS = [*_SHORT_SLOTS, "reasoning"]
_TEXT_SLOTS, _OBJECT_SLOTS, _NAMED_SLOTS = (mix.ROW.count(slot) for slot in ("text", "objects", "named"))


def templates(tokenizer: Tokenizer) -> dict[str, dict[str, list[int]]]:
    """Prompt ids of every skill, as config.json carries them."""

    def word(text: str) -> int:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if len(ids) != 1:
            raise ValueError(f"{text!r} is {len(ids)} tokens: skill words are single tokens")
        return int(ids[0])

    skills = ("query", "detect", "point", "segment")
    framed = {name: {"prefix": [SKILL, word(name), ARGUMENT], "suffix": [ANSWER]} for name in skills}
    caption = {length: [SKILL, word("caption"), ARGUMENT, word(length), ANSWER] for length in _CAPTION_LENGTHS}
    framed["query"]["reasoning_suffix"] = [THINK]
    return {"caption": caption, **framed}


class QuestionMaker:
    """Asks about scenes; holds the token tables."""

    def __init__(self, tokenizer: Tokenizer, answers: Tokenizer, device: torch.device, seed: int = 0) -> None:
        self.device, self._tokenizer, self._answer_tokenizer = device, tokenizer, answers
        self.objects, self.prompts = load_objects(), templates(tokenizer)
        self.lengths = [mix.LENGTHS[slot] for slot in mix.ROW]
        self.parts = [mix.PARTS.index(mix.PART.get(slot, mix.TEXT)) for slot in mix.ROW]
        names = Names(self.encode, random.Random(seed), device)
        self._wording, self._answers = Wording(self.encode, names, device), Answers(self.encode, device)
        self._kinds = Kinds(device)
        mixes = [mix.QUERIES[slot] for slot in _ASKED_SLOTS]
        self._queries = QueryMaker(names, self._wording, self._answers, mixes, device)
        vocabulary = Vocabulary(self.encode, self.prompts, names, self._wording, self._answers, self._kinds)
        self._grounding = GroundingMaker(vocabulary, device)
        self._typed = TypedMaker(vocabulary, device)
        self._captions = Captions(self.encode, device)
        self._named = NamedMaker(vocabulary, self._captions, random.Random(seed + 1), device)
        self._query = padded([self.prompts["query"]["prefix"]], device)
        self._caption_prompts = padded([self.prompts["caption"][length] for length in _CAPTION_LENGTHS], device)
        self._check_room()

    def __call__(self, scenes: Scenes) -> list[Questions]:
        batch, labels = len(scenes.labels), scenes.labels
        kinds, relations = self._kinds.asked(labels, _OBJECT_SLOTS + len(_ASKED_SLOTS) + 1), relate(scenes)
        queries = self._queries(scenes, relations, kinds[_OBJECT_SLOTS:-1])
        spoken = len(_SHORT_SLOTS) * batch
        thought = select_rows(
            self._grounding.reasoning(scenes, queries.rows(slice(spoken, None))),
            self._grounding.outline(scenes, mix.LENGTHS["thought"]),
            chance(mix.THOUGHT_SHARE, (batch,), labels.device),
        )
        return [
            *self._grounding.objects(scenes, kinds[:_OBJECT_SLOTS]),
            self._typed(scenes, relations, kinds[-1]),
            *(self._named(scenes, relations, self._kinds.asked(labels, 1 + named.CELLS)) for _ in range(_NAMED_SLOTS)),
            *self._short(queries.rows(slice(spoken))),
            *(self._text(scenes) for _ in range(_TEXT_SLOTS)),
            self._grounding.outline(scenes, mix.LENGTHS["outline"]),
            thought,
        ]

    def encode(self, text: str) -> list[int]:
        """Tokenise text that the model writes, or a piece of a prompt in lower case with the space before it."""
        return list(self._answer_tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_prompt(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _short(self, queries: Queries) -> list[Questions]:
        words = queries.words
        parts = [
            Part(self._query.expand(len(words), -1)),
            queries.reference,
            Part(words),
            Part(token(ANSWER, words)),
            Part(self._answers.ids[self._answers.respelled(queries.answer)], weight=mix.ANSWER_WEIGHT),
            Part(token(BOS, words), weight=1.0),
        ]
        lengths = [mix.LENGTHS[slot] for slot in _SHORT_SLOTS]
        return slots(join_parts(parts, max(lengths)), lengths)

    def _text(self, scenes: Scenes) -> Questions:
        """A caption of one of the three lengths, or the answer to an open question, which is the short one."""
        batch, device = len(scenes.labels), scenes.labels.device
        style = torch.randint(LONG + 2, (batch,), device=device)
        listing = (style > LONG)[:, None]
        style = style * ~listing[:, 0]  # SHORT is 0
        group = scalar(self._wording.group["list"], device).expand_as(style)
        question = self._wording(group, scalar(0, device).expand_as(style))
        asked = torch.cat((self._query.expand(batch, -1), question, token(ANSWER, question)), 1)
        style, caption = self._captions(scenes, style, mix.LENGTHS["text"] - self._caption_prompts.shape[1] - 1)
        parts = [
            Part(masked(~listing, self._caption_prompts[style])),
            Part(masked(listing, asked)),
            caption,
            Part(token(BOS, question), weight=1.0),
        ]
        return join_parts(parts, mix.LENGTHS["text"])

    def _check_room(self) -> None:
        """Make sure that no question of any slot can be cut."""
        ends = self._query.shape[1] + 2
        thoughts = max(self._wording.longest(question) for question in mix.QUERIES["reasoning"])
        grounded = self._grounding.longest(MAX_OBJECTS, MAX_VERTICES, thoughts)
        needed = [
            ("detect", grounded["detect"], "objects"),
            ("segment", grounded["segment"], "outline"),
            ("segment", grounded["segment"], "thought"),
            ("reasoning", grounded["reasoning"], "thought"),
            ("typed", self._typed.longest(), "typed"),
            ("named", self._named.longest(), "named"),
            ("list", ends + self._wording.longest("list") + self._captions.longest_listing(MAX_KINDS), "text"),
        ]
        for slot in _SHORT_SLOTS:
            needed += [(question, ends + self._queries.longest(question), slot) for question in mix.QUERIES[slot]]
        for name, longest, slot in needed:
            if longest > mix.LENGTHS[slot]:
                room = mix.LENGTHS[slot]
                raise ValueError(
                    f"a {name} question can take {longest} tokens but its slot {slot!r} has room for {room}"
                )
