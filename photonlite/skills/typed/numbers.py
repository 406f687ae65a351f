"""Places that a typed answer spells as whole numbers, read into the objects that other checkpoints draw.

```
{"box": [341, 258, 397, 360]}     ──>   {"box": {"x_min":0.341,"y_min":0.258,"x_max":0.397,"y_max":0.36,"score":0.97}}
{"at": [512, 77]}                 ──>   {"at": {"x":0.512,"y":0.077,"score":0.95}}
```
"""

import json
import math

from photonlite.grammar.decoding.items import number_mass
from photonlite.grammar.decoding.numbers import NumberAutomaton
from photonlite.grammar.prompts import Prompts
from photonlite.request import Token
from photonlite.skills.base import ordered_box

_TINY = 1e-9  # a probability may round to 0 in float32
_DIGITS = 6  # significant ones of a spelled number


class NumberReader:
    """Reads the tokens of a typed answer into text: words as they come, places when they are complete.

    The score of a place is the geometric mean over its numbers of the probability mass around them (`number_mass`),
    times the probability that the number ends where it does; at temperature 1, among what the grammar allows.
    """

    def __init__(self, prompts: Prompts, states: NumberAutomaton) -> None:
        self._end, self._digit_ids = prompts.vocabulary.end, prompts.vocabulary.digits
        self._words = prompts.detokenizer()
        self._states, self._state = states, states.start
        self._digits: list[Token] = []  # of the number that is being written
        self._numbers: list[tuple[float, float]] = []  # of the place that is being written: in [0, 1], and its mass

    def feed(self, token: Token) -> str:
        if token.id == self._end:
            return self._words.flush()
        states = self._states
        self._state = states.after(self._state, token.id)
        if states.in_number(self._state):
            self._digits.append(token)
            return ""
        if self._digits:
            self._end_number(token)
        text = self._words.feed(token.id)
        if self._numbers:  # between two numbers, or behind the last one
            if not text.startswith("]"):
                return ""
            text = self._spelled() + text[1:]
        # One token may end a place and open the next: `],[`.
        return text.removesuffix("[") if states.expects_number(self._state) else text

    def flush(self) -> str:
        return self._words.flush()

    def _end_number(self, following: Token) -> None:
        bound = self._states.bounds[len(self._numbers) % 2]
        value = int("".join(str(self._digit_ids.index(digit.id)) for digit in self._digits))
        ends = max(0.0, 1 - sum(following.scores))  # scores are those of one more digit
        mass = number_mass(self._digits, self._digit_ids, bound) * ends
        self._numbers.append((min(value, bound) / bound, mass))
        self._digits = []

    def _spelled(self) -> str:
        (*values,), masses = zip(*self._numbers, strict=True)
        self._numbers = []
        place = dict(zip("xy", values, strict=True)) if len(values) == 2 else ordered_box(*values)
        score = math.exp(sum(math.log(max(mass, _TINY)) for mass in masses) / len(masses))
        shown = {name: float(f"{number:.{_DIGITS}g}") for name, number in {**place, "score": min(score, 1.0)}.items()}
        return json.dumps(shown, separators=(",", ":"))
