"""Answer a question with one of some texts, and say how probable each was.

```
choices yes, no, none       the first request goes down the tree of spellings
  root ┬ yes  0.6           at every fork it notes the probability of each branch
       └ no   0.4 ┬ end 0.7
                  └ ne  0.3     a follow-up request scores a branch that was not taken and holds several choices
```

A choice is spelled as it is, and behind a space; it has the probabilities of both. Along a spelling they are products,
each factor among what may stand at its position; all spellings together have 1.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from photonlite.errors import CapacityError
from photonlite.grammar.decoding.automaton import Automaton
from photonlite.grammar.decoding.choices import ChoiceGrammar, ChoiceTrie
from photonlite.grammar.prompts import Prompts, Size
from photonlite.request import Completion, Request, SamplingSettings, Token
from photonlite.results.text import TokenReader
from photonlite.skills.query import CheckedQuestion, with_reasoning
from photonlite.skills.typed.forms import ChoicesForm
from photonlite.skills.typed.question import DeferredRequest

MAX_SCORED_CHOICES = 64
"""Choices up to which each gets a score."""

_NEGLIGIBLE = 1e-8
"""Probability below which a branch is not followed: float32 could not tell."""

Prefix = tuple[int, ...]


class ChoiceQuestion(DeferredRequest):
    """A question that is answered with one of some texts. It can be asked once."""

    def __init__(self, prompts: Prompts, question: CheckedQuestion, form: ChoicesForm) -> None:
        super().__init__(prompts, question)
        self._choices = form.choices
        self._tree: ChoiceTrie | None = None
        self._scoring: Scoring | None = None
        self._prompt = question.prompt

    def bind(self, automaton: Automaton | None, sizes: Sequence[Size] = ()) -> Request:
        """Spell the choices and make the request; raises a PromptError or a CapacityError."""
        question = self._question = self._question.sized(self._prompts, sizes)
        few = len(self._choices) <= MAX_SCORED_CHOICES
        tree = self._tree = ChoiceTrie(self._spellings(), self._prompts.vocabulary.end, scored=few)
        if tree.longest > question.room - 2 * question.reasoning:
            raise CapacityError(
                f"the longest choice takes {tree.longest} tokens, but the context has room for {question.room} after "
                "the prompt: shorten the choices or the question"
            )
        if few:
            self._scoring = Scoring(tree, len(self._choices))
        grammar = ChoiceGrammar(tree, tree.longest)
        if question.reasoning:
            return self._after_reasoning(grammar, tree.longest)
        return question.request(grammar, tree.longest)

    def further(self, begun: Prefix | None, completion: Completion) -> Sequence[tuple[Prefix, Request]]:
        """Take the completion of the request that began with `begun`, None for the question itself.

        Returns follow-up requests with the ids they begin with; scores are complete when all have been taken.
        """
        tree, scoring = self._tree, self._scoring
        if tree is None or scoring is None:
            return ()
        tokens = completion.tokens
        if begun is None and self._question.reasoning:
            thought = [token.id for token in tokens].index(self._prompts.vocabulary.answer) + 1
            self._prompt = (*self._question.prompt, *(Token(token.id, token.values) for token in tokens[:thought]))
            tokens = tokens[thought:]
        return [(ids, self._branch(tree, ids)) for ids in scoring.take(begun or (), tokens)]

    def _reader(self) -> tuple[TokenReader, dict[str, Any]]:
        scores: dict[str, float] | None = None if self._scoring is None else {}
        reasoning, reader = with_reasoning(self._prompts, _ChoiceReader(self, scores), self._question.reasoning)
        return reader, {"reasoning": reasoning, "scores": scores}

    def answer(self, ids: Sequence[int], scores: dict[str, float] | None) -> str:
        """Fill in the scores and return the choice: what the ids spell if sampled, the most probable one if greedy."""
        if self._tree is None or (spelled := self._tree.choice(ids)) is None:
            raise AssertionError(f"ids {ids} spell no choice")
        if scores is None or self._scoring is None:
            return self._choices[spelled]
        shares = self._scoring.shares()
        scores.update(zip(self._choices, shares, strict=True))
        if self._question.settings.greedy and shares[spelled] < max(shares):
            spelled = shares.index(max(shares))
        return self._choices[spelled]

    def _spellings(self) -> list[tuple[Prefix, int]]:
        known = {choice: index for index, choice in enumerate(self._choices)}
        # Behind a question most models begin with a space; a choice of that text keeps its own index.
        known = {f" {choice}": index for choice, index in known.items()} | known
        return [(self._prompts.spell(choice), index) for choice, index in known.items()]

    def _branch(self, tree: ChoiceTrie, ids: Prefix) -> Request:
        prompt = (*self._prompt, *(Token(index) for index in ids))
        question = dataclasses.replace(self._question, prompt=prompt, settings=SamplingSettings())
        budget = tree.longest - len(ids)
        request = question.request(ChoiceGrammar(tree, budget, ids), budget)
        return dataclasses.replace(request, begun=len(prompt) - len(self._question.prompt))


class Scoring:
    """The probabilities of choices, added up as requests find them."""

    def __init__(self, tree: ChoiceTrie, count: int) -> None:
        self._tree = tree
        self._shares = [0.0] * count
        self._open: dict[Prefix, float] = {(): 1.0}

    def shares(self) -> list[float]:
        """Return the probability of each choice; together they have 1."""
        whole = sum(self._shares)
        return [share / whole for share in self._shares]

    def take(self, begun: Prefix, tokens: Sequence[Token]) -> list[Prefix]:
        """Take the tokens behind a prefix; return the branches beside them that have to be asked for."""
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

    def _leave(self, ids: Prefix, share: float) -> bool:
        """Note a branch that was not taken; returns whether it has to be asked for."""
        ended = ids[-1] == self._tree.end
        choices = () if ended else self._tree.choices(ids)
        if ended or len(choices) == 1:
            self._credit(ids, share, *choices)
            return False
        if share < _NEGLIGIBLE:
            return False
        self._open[ids] = share
        return True

    def _credit(self, ids: Prefix, share: float, choice: int | None = None) -> None:
        choice = self._tree.choice(ids) if choice is None else choice
        if choice is None:
            raise AssertionError(f"ids {ids} spell no choice")
        self._shares[choice] += share


class _ChoiceReader:
    """Reads ids into one piece at the end: the choice."""

    def __init__(self, question: ChoiceQuestion, scores: dict[str, float] | None) -> None:
        self._question = question
        self._scores = scores
        self._ids: list[int] = []

    def feed(self, token: Token) -> str:
        self._ids.append(token.id)
        return ""

    def flush(self) -> str:
        return self._question.answer(self._ids, self._scores)
