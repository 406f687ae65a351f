"""From the tokens of a typed answer to its text: words as they come, places spelled out when they are complete.

```
{"box":  x y size  }      ──>   {"box": {"x_min":0.1,"y_min":0.2,"x_max":0.3,"y_max":0.4,"score":0.97} }
{"at":   x y  }           ──>   {"at": {"x":0.2,"y":0.3,"score":0.95} }
```
"""

import json

from photonlite.request import Token
from photonlite.skills.base import Prompts, box, clamp, score

_DIGITS = 6
"""Significant digits of a spelled number: a pixel of an image of a million pixels across."""


class TypedReader:
    """Reads words and places into pieces of text.

    Args:
        prompts: The checkpoint's.
    """

    def __init__(self, prompts: Prompts) -> None:
        self._end = prompts.vocabulary.end
        self._words = prompts.detokenizer()
        self._place: list[Token] = []

    def feed(self, token: Token) -> str:
        """Take a token; give the text that is now certain."""
        if len(token.values) == 1:
            self._place.append(token)
            return ""
        if token.values:
            self._place.append(token)
            return self._spelled()
        text = self._spelled()  # of a point, which only what follows it tells from a box
        return text if token.id == self._end else text + self._words.feed(token.id)

    def flush(self) -> str:
        """Give what is left at the end."""
        return self._spelled() + self._words.flush()

    def _spelled(self) -> str:
        place, self._place = self._place, []
        if not place:
            return ""
        if len(place) == 3:
            numbers = box(place)
        else:
            x, y = (token.values[0] for token in place)
            numbers = {"x": clamp(x), "y": clamp(y)}
        numbers["score"] = score(place)
        shown = {name: float(f"{number:.{_DIGITS}g}") for name, number in numbers.items()}
        # No character is half-way where a place begins: what the words hold back is whole.
        return self._words.flush() + json.dumps(shown, separators=(",", ":"))
