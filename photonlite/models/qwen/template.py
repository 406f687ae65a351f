"""The chat template: turns of texts and images to token ids.

```
<|im_start|>user
<|vision_start|><|image_pad|><|vision_end|>How many?<|im_end|>
<|im_start|>assistant
```

A checkpoint that brings a template gets its own, rendered in a sandbox; one without gets the public one of its
generation. Text of users never becomes a special token, whatever the template does with it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count, product
from pathlib import Path
from typing import Any

from photonlite.errors import CheckpointError, ConfigError, PromptError
from photonlite.models.qwen.config import QwenConfig
from photonlite.models.shards import read_bounded, read_json
from photonlite.models.tokenizer import Tokenizer
from photonlite.request import Turn

START, END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
VISION_START, IMAGE, VISION_END = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"

_DEFAULT_SYSTEM = "You are a helpful assistant."  # the older generation's, where the first turn is another one
_MARKS = range(0xE000, 0xF8FF)  # characters for private use: one that no turn contains hides what users spell
_PROBE = (Turn("user", (None, "?")),)

_THOUGHT, _NO_THOUGHT = "<think>\n", "\n</think>\n\n"
"""Templates of thinking editions open a thought. It is closed at once, as their makers write an empty one: boxes and
JSON would else begin inside it."""

Message = dict[str, Any]
Forms = dict[Any, bool | None]
"""How texts without images are handed over, by role; see `_message`."""
Shape = tuple[tuple[Any, ...], ...]
"""Of a conversation: the role of each turn, and for each of its parts whether it is an image."""


class ChatTemplate:
    """Encodes conversations for one checkpoint.

    Raises CheckpointError for a tokenizer without the special tokens, and ConfigError for a template that is broken, or
    does not show images as the model reads them.
    """

    def __init__(self, tokenizer: Tokenizer, config: QwenConfig, source: str | None) -> None:
        self._tokenizer = tokenizer
        self._image_id = config.image_id
        self._default_system = None if config.version.newer else _DEFAULT_SYSTEM
        _check_tokens(tokenizer, config)
        self._render = self._render_public if source is None else _compile(source)
        self._control = frozenset(tokenizer.special.values())
        self._forms_of = lru_cache(256)(self._find_forms)
        try:
            pieces = self.encode(_PROBE)
        except PromptError as cause:
            raise ConfigError(f"the chat template of this checkpoint cannot be used: {cause}") from cause
        if pieces[0][-1:] != (config.vision_start_id,) or pieces[1][:1] != (config.vision_end_id,):
            raise ConfigError(f"the chat template does not put an image between {VISION_START} and {VISION_END}")

    def encode(self, turns: Sequence[Turn]) -> tuple[tuple[int, ...], ...]:
        """Return the ids before, between and behind the images, up to the answer; PromptError if that fails."""
        texts = "".join(part for turn in turns for part in turn.parts if part is not None)
        mark = next((mark for mark in map(chr, _MARKS) if mark not in texts), None)
        if mark is None:
            raise PromptError("the texts hold every character for private use (U+E000 to U+F8FE): leave one out")
        forms, control = self._forms_of(tuple((turn.role, *(part is None for part in turn.parts)) for turn in turns))
        hide = self._tokenizer.hide
        hidden = [Turn(turn.role, tuple(part and hide(part, mark) for part in turn.parts)) for turn in turns]
        rendered = self._render([_message(turn, forms[turn.role]) for turn in hidden])
        ids = self._tokenizer.encode_template(rendered, mark)
        # A template may leave out what an assistant has thought. What it cuts out may leave a special token.
        asked = [part for turn in hidden if turn.role != "assistant" for part in turn.parts if part]
        if self._control_of(ids) != control or not all(part.strip() in rendered for part in asked):
            raise PromptError("the chat template of this checkpoint changes these texts: write them in other words")
        pieces: list[list[int]] = [[]]
        for index in ids:
            if index == self._image_id:
                pieces.append([])
            else:
                pieces[-1].append(index)
        return tuple(map(tuple, pieces))

    def _control_of(self, ids: Sequence[int]) -> list[int]:
        return [index for index in ids if index in self._control]

    def _find_forms(self, shape: Shape) -> tuple[Forms, list[int]]:
        """Return the form in which a template takes the texts of each role, and the special tokens that it writes.

        A conversation of this shape is rendered with texts of which each must be there once. Some templates read
        contents as a list of parts only, others those of some roles as a string only, and write nothing else.
        """
        texts = (f"{number}\n'it' & \"so\"" for number in count(10**6))
        turns = [Turn(role, tuple(None if image else next(texts) for image in parts)) for role, *parts in shape]
        roles = list(dict.fromkeys(turn.role for turn in turns))
        errors = []
        for chosen in product((None, False, True), repeat=len(roles)):
            forms: Forms = dict(zip(roles, chosen, strict=True))
            try:
                rendered = self._render([_message(turn, forms[turn.role]) for turn in turns])
                _check_whole(turns, rendered)
                return forms, self._control_of(self._tokenizer.encode_template(rendered, ""))
            except PromptError as cause:
                errors.append(cause)
        raise errors[0]

    def _render_public(self, messages: Sequence[Message]) -> str:
        system = self._default_system
        if system is not None and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": system}, *messages]
        return "".join(map(_public_turn, messages)) + f"{START}assistant\n"


def _check_whole(turns: Sequence[Turn], rendered: str) -> None:
    """Raise PromptError unless each text and each image of a conversation is in its rendering once."""
    problem = "the chat template of this checkpoint shows"
    images, shown = sum(turn.parts.count(None) for turn in turns), rendered.count(IMAGE)
    if images != shown:
        raise PromptError(f"{problem} {shown} of {images} images: put images into turns of the user")
    for place, turn in enumerate(turns, 1):
        # The number at the beginning is also found in Python's spelling of a list, which is no text of a prompt.
        times = [rendered.count(part[:7]) if part in rendered else 0 for part in turn.parts if part is not None]
        if set(times) - {1}:
            raise PromptError(f"{problem} the texts of turn {place}, of the {turn.role}, {times} times: leave it out")


def find_template(folder: Path) -> str | None:
    """Return the template that a checkpoint's folder holds, None without one; ConfigError for an unreadable one."""
    if (path := folder / "chat_template.jinja").is_file():
        try:
            return read_bounded(path, ConfigError).decode()
        except ValueError as cause:
            raise ConfigError(f"{path} cannot be read: {cause}") from cause
    for name in ("chat_template.json", "tokenizer_config.json"):
        if (path := folder / name).is_file() and (found := read_json(path, ConfigError).get("chat_template")):
            return _default_of(found, path)
    return None


def _default_of(found: object, path: Path) -> str:
    if isinstance(found, list):  # several templates with names
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, Mapping)}
        found = named.get("default")
    if not isinstance(found, str):
        raise ConfigError(f"chat_template in {path} is {found!r:.60}: it must be text")
    return found


def _compile(source: str) -> Callable[[Sequence[Message]], str]:
    """Return the function that renders a template in a sandbox; ConfigError if it is not valid."""
    # Imported here because it takes a second or two, which other checkpoints need not wait for.
    from transformers.utils.chat_template_utils import render_jinja_template

    def render(messages: Sequence[Message]) -> str:
        conversations: Any = [list(messages)]
        try:
            rendered: Any = render_jinja_template(conversations, chat_template=source, add_generation_prompt=True)
        except Exception as cause:  # a template can raise anything
            raise PromptError(f"the checkpoint's chat template refuses the conversation: {cause!s:.300}") from cause
        text = str(rendered[0][0])
        return text + _NO_THOUGHT if text.endswith(_THOUGHT) else text

    return render


def _message(turn: Turn, plain: bool | None) -> Message:
    """Return a turn as templates read it: texts without images as a string if `plain`, by default if there is one."""
    texts = [part for part in turn.parts if part is not None]
    if len(texts) == len(turn.parts) and (len(texts) == 1 if plain is None else plain):
        return {"role": turn.role, "content": "".join(texts)}
    parts = [{"type": "image"} if part is None else {"type": "text", "text": part} for part in turn.parts]
    return {"role": turn.role, "content": parts}


def _public_turn(message: Message) -> str:
    parts: str | Iterable[dict[str, str]] = message["content"]
    image = f"{VISION_START}{IMAGE}{VISION_END}"
    text = parts if isinstance(parts, str) else "".join(part.get("text", image) for part in parts)
    return f"{START}{message['role']}\n{text}{END}\n"


def _check_tokens(tokenizer: Tokenizer, config: QwenConfig) -> None:
    ids = {IMAGE: config.image_id, VISION_START: config.vision_start_id, VISION_END: config.vision_end_id}
    for text in (START, END, END_OF_TEXT, *ids):
        found = tokenizer.special.get(text)
        if found is None:
            raise CheckpointError(f"tokenizer.json has no special token {text}: use the one of this checkpoint")
        if found != ids.get(text, found):
            raise CheckpointError(f"{text} is token {found} in tokenizer.json, but {ids[text]} in config.json")
