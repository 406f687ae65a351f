"""Answer a question with one of some texts, and say how probable each was.

```
choices yes, no, none       the first request goes down the tree of spellings, by the model's word
  root ┬ yes  0.6           at every fork it notes how probable each branch was
       └ no   0.4 ┬ end 0.7
                  └ ne  0.3     a branch left aside that holds several choices is asked for by a further request
```

A choice has the probabilities of its spellings: as it is, and behind a space. Along a spelling they are products, each
factor among what may stand at its position; all spellings together have 1.
"""

import dataclasses
from collections.abc import AsyncIterator, Iterator, Sequence

from photonlite.errors import CapacityError
from photonlite.grammar.automata.tables import Automaton
from photonlite.grammar.decoding.choices import ChoiceGrammar, ChoiceTrie
from photonlite.request import Completion, Request, SamplingSettings, Token
from photonlite.results import Answer
from photonlite.skills.base import AsyncTextPieces, OnEnd, Prompts, TextPieces
from photonlite.skills.query import CheckedQuestion, with_reasoning
from photonlite.skills.typed.forms import ChoicesForm
from photonlite.skills.typed.question import draft_of, reasoned

MAX_SCORED_CHOICES = 64
"""Choices up to which each gets a score."""

_NEGLIGIBLE = 1e-8
"""Probability of a branch below which nobody looks into it: float32 could not tell."""

Ids = tuple[int, ...]


class ChoiceQuestion:
    """A question that is answered with one of some texts. It can be asked once.

    Args:
        prompts: The checkpoint's.
        question: What is asked.
        form: The texts.

    Attributes:
        draft: The request without its grammar.
        spec: Nothing has to be compiled.
    """

    spec = None

    def __init__(self, prompts: Prompts, question: CheckedQuestion, form: ChoicesForm) -> None:
        self.draft = draft_of(question)
        self._prompts = prompts
        self._question = question
        self._choices = form.choices
        self._tree: ChoiceTrie | None = None
        self._scoring: Scoring | None = None
        self._prompt = question.prompt

    def bind(self, automaton: Automaton | None) -> Request:
        """Make the request: spell the choices.

        Raises:
            PromptError: A choice holds what this model keeps for control, or is no valid Unicode.
            CapacityError: The context has no room for the longest choice.
        """
        tree, question = self._spell(), self._question
        if tree.longest > question.room - 2 * question.reasoning:
            raise CapacityError(
                f"the longest choice takes {tree.longest} tokens, but the context has room for {question.room} after "
                "the prompt: shorten the choices or the question"
            )
        if len(self._choices) <= MAX_SCORED_CHOICES:
            self._scoring = Scoring(tree, len(self._choices))
        grammar = ChoiceGrammar(tree, tree.longest)
        if question.reasoning:
            return reasoned(self._prompts, question, grammar, tree.longest)
        return question.request(grammar, tree.longest)

    def further(self, begun: Ids | None, completion: Completion) -> Sequence[tuple[Ids, Request]]:
        """Take what a request has found, and give those that it leaves to be asked.

        Args:
            begun: With which ids the answers of the request begin; None for the question itself.
            completion: What became of it.
        """
        tree, scoring = self._tree, self._scoring
        if tree is None or scoring is None:
            return ()
        tokens = completion.tokens
        if begun is None:
            thought = self._thought(tokens)
            self._prompt = (*self._question.prompt, *(Token(token.id, token.values) for token in tokens[:thought]))
            tokens = tokens[thought:]
        return [(ids, self._branch(tree, ids)) for ids in scoring.take(begun or (), tokens)]

    def finish(self, completion: Completion) -> Answer:
        """Read the answer."""
        scores: dict[str, float] | None = None if self._scoring is None else {}
        reasoning, reader = with_reasoning(self._prompts, _ChoiceReader(self, scores), self._question.reasoning)
        text = "".join(TextPieces(reader, completion.tokens))
        return Answer(
            text, reasoning, scores=scores, metrics=completion.metrics, finish_reason=completion.finish_reason
        )

    def stream(self, tokens: Iterator[Token], on_end: OnEnd) -> Answer:
        """Read the answer, which is one piece: which choice it is shows at the end."""
        scores: dict[str, float] | None = None if self._scoring is None else {}
        reasoning, reader = with_reasoning(self._prompts, _ChoiceReader(self, scores), self._question.reasoning)
        return Answer(TextPieces(reader, tokens), reasoning, scores=scores, on_end=on_end)

    def astream(self, tokens: AsyncIterator[Token], on_end: OnEnd) -> Answer:
        """The same for tokens that are awaited."""
        scores: dict[str, float] | None = None if self._scoring is None else {}
        reasoning, reader = with_reasoning(self._prompts, _ChoiceReader(self, scores), self._question.reasoning)
        return Answer(AsyncTextPieces(reader, tokens), reasoning, scores=scores, on_end=on_end)

    def answer(self, ids: Sequence[int], scores: dict[str, float] | None) -> str:
        """Give the choice that was made, and fill in how probable each was.

        It is the one that the ids spell where the request was sampled; else the most probable, which is nearly always
        the same: the greedy way down a tree can miss a choice whose spellings are likelier together.
        """
        if self._tree is None or (spelled := self._tree.choice(ids)) is None:
            raise AssertionError(f"ids {ids} spell no choice")
        if scores is None or self._scoring is None:
            return self._choices[spelled]
        shares = self._scoring.shares()
        scores.update(zip(self._choices, shares, strict=True))
        best = max(shares)
        greedy = self._question.settings.greedy and shares[spelled] < best
        return self._choices[shares.index(best) if greedy else spelled]

    def _spell(self) -> ChoiceTrie:
        known, spell = set(self._choices), self._prompts.spell
        spellings = [(spell(choice), index) for index, choice in enumerate(self._choices)]
        # Behind a question most models begin with a space.
        spellings += [
            (spell(" " + choice), index) for index, choice in enumerate(self._choices) if " " + choice not in known
        ]
        few = len(self._choices) <= MAX_SCORED_CHOICES
        self._tree = ChoiceTrie(spellings, self._prompts.vocabulary.end, scored=few)
        return self._tree

    def _thought(self, tokens: Sequence[Token]) -> int:
        """Give the number of tokens of the reasoning, the id that ends it among them."""
        if not self._question.reasoning:
            return 0
        return [token.id for token in tokens].index(self._prompts.vocabulary.answer) + 1

    def _branch(self, tree: ChoiceTrie, ids: Ids) -> Request:
        """Ask for the answers that begin with some ids, greedily."""
        budget = tree.longest - len(ids)
        prompt = (*self._prompt, *(Token(index) for index in ids))
        question = dataclasses.replace(self._question, prompt=prompt, settings=SamplingSettings())
        return question.request(ChoiceGrammar(tree, budget, ids), budget)


class Scoring:
    """The probabilities of choices, as requests find them.

    Args:
        tree: The spellings.
        count: Choices.
    """

    def __init__(self, tree: ChoiceTrie, count: int) -> None:
        self._tree = tree
        self._shares = [0.0] * count
        self._open: dict[Ids, float] = {(): 1.0}

    def shares(self) -> list[float]:
        """Give the probability of each choice; all together they have 1."""
        whole = sum(self._shares)
        return [share / whole for share in self._shares]

    def take(self, begun: Ids, tokens: Sequence[Token]) -> list[Ids]:
        """Take a way down the tree.

        Args:
            begun: Where it begins.
            tokens: How it goes on, to the end, with the probabilities at its forks.

        Returns:
            The beginnings of branches that were left aside and hold several choices.
        """
        share, way, aside = self._open.pop(begun), begun, []
        for token in tokens:
            if token.scores:
                forks = dict(zip(self._tree.children(way), token.scores, strict=True))
                here = forks.pop(token.id)
                branches = [((*way, index), share * part) for index, part in forks.items()]
                aside += [ids for ids, part in branches if self._leave(ids, part)]
                share *= here
            way = (*way, token.id)
        self._credit(way, share)
        return aside

    def _leave(self, ids: Ids, share: float) -> bool:
        """Note a branch that was left aside; tells whether it has to be asked for."""
        ended = ids[-1] == self._tree.end
        choices = () if ended else self._tree.choices(ids)
        if ended or len(choices) == 1:
            self._credit(ids, share, *choices)
            return False
        if share < _NEGLIGIBLE:
            return False
        self._open[ids] = share
        return True

    def _credit(self, ids: Ids, share: float, choice: int | None = None) -> None:
        choice = self._tree.choice(ids) if choice is None else choice
        if choice is None:
            raise AssertionError(f"ids {ids} spell no choice")
        self._shares[choice] += share


class _ChoiceReader:
    """Reads ids into one piece, at the end: the choice."""

    def __init__(self, question: ChoiceQuestion, scores: dict[str, float] | None) -> None:
        self._question = question
        self._scores = scores
        self._ids: list[int] = []

    def feed(self, token: Token) -> str:
        self._ids.append(token.id)
        return ""

    def flush(self) -> str:
        return self._question.answer(self._ids, self._scores)
