"""Stop sequences: the text before the first of them, also where it comes in pieces that cut one in two."""

from collections.abc import Sequence


class StopSequences:
    """Passes text on up to the first of some sequences, each of at least one character.

    Attributes:
        met: Whether one has come: nothing is passed on from then on.
    """

    def __init__(self, sequences: Sequence[str]) -> None:
        self._sequences = tuple(sequences)
        self._held = ""
        self.met = False

    def feed(self, piece: str) -> str:
        """Take a piece; return the text that is certain to come before any stop sequence."""
        if self.met:
            return ""
        text = self._held + piece
        found = [(text.find(sequence), len(sequence)) for sequence in self._sequences if sequence in text]
        if found:
            self.met, self._held = True, ""
            # The first complete one counts, so that it does not matter how the text was cut into pieces.
            return text[: min(found, key=lambda place: (sum(place), place))[0]]
        keep = max((self._begun(text, sequence) for sequence in self._sequences), default=0)
        certain, self._held = text[: len(text) - keep], text[len(text) - keep :]
        return certain

    def flush(self) -> str:
        """Return the text that was held back, at the end of the answer."""
        rest, self._held = self._held, ""
        return rest

    @staticmethod
    def _begun(text: str, sequence: str) -> int:
        """Return how many characters at the end of a text are the beginning of a sequence."""
        longest = min(len(sequence) - 1, len(text))
        return next((size for size in range(longest, 0, -1) if text.endswith(sequence[:size])), 0)
