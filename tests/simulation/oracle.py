"""One request alone, in plain Python: the tokens that the engine must produce, whatever else it does."""

from collections.abc import Sequence

from photonlite.request import Grammar, Token
from photonlite.runner.sampling_params import uniform
from tests.simulation.model import (
    BOS_CELL,
    Input,
    adapted,
    block_cells,
    choose,
    embed,
    embed_image,
    image_cell,
    next_cell,
)


class Oracle:
    """Produces a request's tokens one by one.

    Args:
        image: Crops of the image it is about, as numbers; None for text alone.
        prefix_length: Positions of BOS and image.
        prompt: What follows them.
        inside: What stands at each position of a prompt with images inside, all of it causal; None for other prompts.
        begun: Tokens at its end that are causal where the others attend in both directions; None where all are causal.
        grammar: The oracle's own.
        temperature: Above 0, random numbers of `seed` take part in every choice.
        top_p: Share of the allowed ids that sampling considers; of no effect at temperature 0.
        seed: Of the sequence.
        adapter: Number of the adapter; 0 for none.
        penalized: Whether words of prompt and answer are not chosen again.
    """

    def __init__(
        self,
        image: Sequence[int] | None,
        prefix_length: int,
        prompt: Sequence[Token],
        grammar: Grammar,
        temperature: float,
        top_p: float,
        seed: int,
        *,
        penalized: bool,
        inside: Sequence[Input] | None = None,
        begun: int | None = None,
        adapter: int = 0,
    ) -> None:
        leading = [BOS_CELL]
        if image is not None:
            whole = embed_image([adapted(crop, adapter) for crop in image])
            leading = [image_cell(whole, position) for position in range(prefix_length)]
        self._cells = [adapted(cell, adapter) for cell in leading]
        self._adapter = adapter
        self._seen = {token.id for token in prompt if penalized and not token.values}
        if begun is not None:
            block = len(prompt) - begun
            self._cells = block_cells(self._cells, [embed(token) for token in prompt[:block]], adapter)
            prompt = prompt[block:]
        for token in prompt if inside is None else ():
            self._cells.append(next_cell(self._cells[-1], embed(token), adapter))
        if inside is not None:
            newest, self._cells = BOS_CELL, []
            for one in inside:
                newest = next_cell(newest, one, adapter)
                self._cells.append(newest)
        self.grammar = grammar
        self.said = 0
        self._seed = seed if temperature > 0 else None
        self._top_p = top_p if temperature > 0 else 1.0
        self._penalized = penalized

    def next(self) -> Token:
        """Return the next token; raises what the grammar raises, or ValueError where it allows nothing possible."""
        cells, seed = self._cells, self._seed
        newest = cells[-1]
        hidden = hash((newest, cells[newest % len(cells)]))
        draws = (0.0, 0.0, 0.0)
        if seed is not None:
            draws = (uniform(seed, self.said, 0), uniform(seed, self.said, 1), uniform(seed, self.said, 2))
        token = choose(hidden, self.grammar.allowed, draws, self._top_p, self._seen)
        self.grammar.accept(token)
        if self._penalized and not token.values:
            self._seen.add(token.id)
        if self.grammar.finish_reason is None:
            cells.append(next_cell(newest, embed(token), self._adapter))
        self.said += 1
        return token
