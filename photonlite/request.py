"""What the engine is asked, in plain values: settings, tokens, and the interface of a grammar. No torch.

```
skill.build ──> Request(prompt: Tokens, grammar: what may follow, settings: how to sample)
engine      ──> Token, Token, Token ...     each allowed by the grammar, then accepted by it
skill.finish ─> result, from the Completion
```
"""

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypedDict

import numpy as np
import numpy.typing as npt

from photonlite.errors import SettingsError, TruncatedError
from photonlite.hints import did_you_mean
from photonlite.results import Metrics
from photonlite.settings import check_settings, setting

MAX_SCORED = 128
"""Most ids that one position gives probabilities for: two spellings of 64 choices."""

SETTINGS = ("temperature", "top_p", "top_k", "repetition_penalty", "max_tokens", "max_objects", "seed", "stop")
"""Names of the fields of `SamplingSettings`."""


MAX_STOPS = 4
MAX_STOP_CHARACTERS = 1_000


class RequestSettings(TypedDict, total=False):
    """The `settings` argument of the public methods, by name: see `SamplingSettings`."""

    temperature: float
    top_p: float
    top_k: int | None
    repetition_penalty: float
    max_tokens: int
    max_objects: int
    seed: int | None
    stop: str | Sequence[str] | None


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How a request samples among what its grammar allows, and where it stops.

    Attributes:
        temperature: Divides the logits before sampling; 0 is greedy. It holds for words, decisions and coordinates.
        top_p: Sampling considers the most probable choices up to this probability mass.
        top_k: Sampling considers so many of the most probable choices, before `top_p`; None for all.
        repetition_penalty: Divides the positive logits of ids that stand in the prompt or in the answer so far, and
            multiplies the negative ones, before anything else and when greedy too, as transformers does. It holds for
            words that are free (`Allowed.free`). Probabilities that results report stay those of the model without it.
        max_tokens: Tokens of a text or an outline at most; reasoning and answer count separately, as in the public
            reference. Lists of boxes and points do not count them.
        max_objects: Boxes or points at most.
        seed: Makes a sampled result repeat on one device as greedy ones do: see "Exactness" in `engine/README.md`.
        stop: Up to 4 sequences of 1 to 1,000 characters: a text ends before the first of them, and so does its
            computation. Reasoning is not searched for them.

    Raises:
        SettingsError: A value has the wrong type or is out of its range.
    """

    temperature: float = setting(0.0, least=0)
    top_p: float = setting(1.0, least=0, most=1)
    top_k: int | None = setting(None, least=1)
    repetition_penalty: float = setting(1.0, least=0.01, most=100)
    max_tokens: int = setting(768, least=1)
    max_objects: int = setting(50, least=1)
    seed: int | None = setting(None, least=0, most=2**63 - 1)
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given: Any = self.stop
        stops = () if given is None else (given,) if isinstance(given, str) else given
        sized = isinstance(stops, list | tuple) and len(stops) <= MAX_STOPS
        if not sized or not all(isinstance(text, str) and 0 < len(text) <= MAX_STOP_CHARACTERS for text in stops):
            wanted = f"a text, or a list of at most {MAX_STOPS}, of 1 to {MAX_STOP_CHARACTERS} characters"
            raise SettingsError(f"setting 'stop' is {_shown(given)}: give {wanted}")
        object.__setattr__(self, "stop", tuple(stops))
        check_settings(self, "setting")

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any] | None) -> "SamplingSettings":
        """Read the `settings` argument of the public methods; None and names left out mean the defaults."""
        if settings is None:
            return _defaults()
        if not isinstance(settings, Mapping):
            raise SettingsError(
                f"settings is of type {type(settings).__name__}: give a dict such as {{'temperature': 0.5}}"
            )
        for name in settings:
            if name == "variant":
                raise SettingsError(
                    "setting 'variant' names an adapter: load it with load_adapter(), and give its name as adapter=..."
                )
            if name not in SETTINGS:
                hint = did_you_mean(name, SETTINGS)
                raise SettingsError(f"setting {_shown(name)} is unknown{hint}: the settings are {', '.join(SETTINGS)}")
        return cls(**settings)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@functools.cache
def _defaults() -> SamplingSettings:
    """Return the settings of most requests, checked once."""
    return SamplingSettings()


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


class Token(NamedTuple):
    """One position of a sequence: an id, or an id that carries numbers.

    Thousands are made a second, and a frozen dataclass takes three times as long to make.
    """

    id: int
    values: tuple[float, ...] = ()  # `(v,)` of a coordinate, `(width, height)` of a size, in [0, 1]; empty for text
    probability: float = 1.0  # of the decision that another object follows, where the position made it
    masses: tuple[float, ...] = ()  # for each value, the probability mass around the sampled bin
    scores: tuple[float, ...] = ()  # probabilities of the ids in `Allowed.scored`


IMAGE = Token(-1)
"""Stands at every position of an image that a prompt holds, and in a request once for each image."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """What may stand at the next position, small enough to go with every step."""

    ids: tuple[int, ...] | None = None  # to sample from; of equals the first wins; None: all that are not suppressed
    suppressed: tuple[int, ...] = ()  # left out where `ids` is None
    coordinate: int | None = None  # the id that carries a coordinate here; None where it is text like any other
    size: int | None = None  # the same for a size
    # Where set, the position decides between this id and one more object: any other id counts as `coordinate`, and the
    # probability of going on is wanted.
    end: int | None = None
    # Where set, the ids to sample from as bits, in place of `ids` and `suppressed`; immutable. int32 ``[words]``, laid
    # out by `grammar.decoding.grammars`.
    mask: npt.NDArray[np.int32] | None = field(default=None, compare=False)
    scored: tuple[int, ...] = ()  # at most MAX_SCORED ids whose probabilities are wanted, at temperature 1

    @property
    def forced(self) -> int | None:
        return self.ids[0] if self.ids is not None and len(self.ids) == 1 else None

    @property
    def free(self) -> bool:
        """Whether words may stand here that no grammar has listed: a repetition penalty holds there alone.

        To penalise what is listed (numbers of places and outlines, choices, the structure of JSON) would change what
        an answer says, not how.
        """
        return self.ids is None and self.end is None and not self.scored

    @property
    def certain(self) -> int | None:
        """The only id that may stand there, where it is all that the position gives: no number, no probability."""
        forced = self.forced
        return None if self.scored or forced in (self.coordinate, self.size) else forced

    def permits(self, token_id: int) -> bool:
        if self.mask is not None:
            word, bit = divmod(token_id, 32)
            return 0 <= word < len(self.mask) and bool(int(self.mask[word]) >> bit & 1)
        return token_id not in self.suppressed if self.ids is None else token_id in self.ids


class Grammar(Protocol):
    """A state machine over one sequence: what may follow, given the tokens that it has accepted."""

    @property
    def allowed(self) -> Allowed:
        """What may stand at the next position; meaningless once finished."""

    @property
    def ahead(self) -> Allowed | None:
        """What may stand one position further, where that does not depend on the next token; else None.

        Where every row of a batch knows this, its tokens are sampled without waiting for those before them.
        """

    @property
    def run(self) -> tuple[int, ...]:
        """The ids that must follow one after the other, as far as each is the only one allowed and is all that its
        position gives: no number, no probability. Empty where there is a choice, or it is not known. It is read on the
        engine's thread, for which all requests wait: a long one may come in parts.
        """

    @property
    def expected_run(self) -> tuple[int, ...]:
        """The ids that probably must follow the next token, whatever it is; empty where that is not known.

        It is a hint: a launch may compute them with that token before it has come. Where `run` then begins otherwise,
        what was computed is dropped.
        """

    @property
    def finish_reason(self) -> str | None:
        """Why nothing may follow: "stop", "max_objects" or "length"; None while something may."""

    def accept(self, token: Token) -> None:
        """Advance by a token; raises `ValueError` where it was not allowed, or nothing may follow."""


def checked_run(run: object, vocab_size: int) -> tuple[int, ...]:
    """Return what a grammar says of a run; TypeError or ValueError where these are not ids of the vocabulary."""
    if not isinstance(run, tuple):
        raise TypeError(f"a grammar's run is {run!r:.60}, not a tuple of ids")
    if not run:  # as at most tokens
        return ()
    ids = tuple(map(operator.index, run))
    # The device uses them as indices: one out of range would fail all requests of a launch.
    if not 0 <= min(ids) <= max(ids) < vocab_size:
        raise ValueError(f"a grammar's run has ids {min(ids)} to {max(ids)} of a vocabulary of {vocab_size}")
    return ids


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    parts: tuple[str | None, ...]  # texts, and None where the next image stands

    @property
    def text(self) -> str:
        return "\n".join(part for part in self.parts if part is not None).strip()


class AdapterRef(Protocol):
    """An adapter of the model that a request is answered with."""

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> str:
        """Hash of its content: tells adapters apart, whatever they are called."""


@dataclass(frozen=True, slots=True)
class Request:
    """One question, ready for the engine; it can run once, because its grammar has state."""

    skill: str
    prompt: tuple[Token, ...]  # after BOS and a leading image; with IMAGE where others stand
    grammar: Grammar  # what may follow the prompt, with every limit built in
    budget: int  # most tokens that the grammar accepts, for which the cache needs room
    settings: SamplingSettings
    subject: str = ""  # the question or the object, stripped: the label of results
    cache_salt: str = ""  # prompts of different cache salts share nothing that was computed for them
    realtime: bool = False  # goes before bulk work, and fails when it can no longer be in time
    strict: bool = False  # an answer that a limit cut short is an error
    kept: bool = False  # what was computed for its answer may serve later requests, as that for its prompt does
    begun: int = 0  # tokens at the prompt's end that its answer begins with
    adapter: AdapterRef | None = None  # of the model; requests of different ones share nothing that was computed

    @property
    def adapter_key(self) -> str:
        """Hash of the adapter's content; empty for none."""
        return "" if self.adapter is None else self.adapter.key

    def check(self, finish_reason: str | None) -> None:
        """Raise `TruncatedError` if a limit cut the answer short and the request is strict."""
        if not self.strict or finish_reason == "stop":
            return
        settings = self.settings
        if finish_reason == "max_objects":
            limit, more = f"max_objects, which is {settings.max_objects}", "raise it"
        elif self.skill in ("detect", "point") or self.budget < settings.max_tokens:
            limit = "the model's context length"
            more = "shorten the prompt, ask for less, or raise max_output_tokens where it is set"
        else:
            limit, more = f"max_tokens, which is {settings.max_tokens}", "raise it, or ask for less"
        raise TruncatedError(f"the answer was cut short by {limit}: {more}, or leave strict out to get what there is")


@dataclass(frozen=True, slots=True)
class Completion:
    tokens: tuple[Token, ...]  # the end id included
    finish_reason: str | None  # "stop", "max_objects" or "length"
    metrics: Metrics
    picture_size: tuple[int, int] | None = None  # width and height of the image in pixels
    parts: tuple["Completion", ...] = ()  # of the requests of a call that has several; it then has no tokens
