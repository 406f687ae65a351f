"""A tiny question through every skill and every head, which finds checkpoints that compute NaN."""

from photonlite.errors import UnsupportedSkillError
from photonlite.grammar.prompts import Prompts
from photonlite.request import Allowed, Request, SamplingSettings, Token
from photonlite.skills.encode import FixedGrammar


def build(prompts: Prompts) -> dict[str, Request]:
    """Make a request about an image for each skill of a checkpoint, by its name.

    For its answer each head chooses once: a word, x, y, a size, and a word that depends on numbers as inputs.
    """
    ids, word = prompts.vocabulary, Allowed()
    if prompts.inline is not None:
        words = prompts.query("?", reasoning=False, refs=())
        return {"query": Request("query", words, FixedGrammar(word, word), 2, SamplingSettings())}
    place = Allowed((ids.coordinate,), coordinate=ids.coordinate)
    size = Allowed((ids.size,), size=ids.size)
    steps = [word, place, place, size, word]
    asked = {
        "caption": lambda: _caption(prompts),
        "query": lambda: prompts.query("?", reasoning=False, refs=()),
        "detect": lambda: prompts.detect("it"),
        "point": lambda: prompts.point("it", refs=()),
        "segment": lambda: prompts.segment("it", refs=()),
    }
    return {
        skill: Request(skill, asked[skill](), FixedGrammar(*steps), len(steps), SamplingSettings())
        for skill in prompts.skills
        if skill in asked
    }


def _caption(prompts: Prompts) -> tuple[Token, ...]:
    for length in ("short", "normal", "long"):
        try:
            return prompts.caption(length)
        except UnsupportedSkillError:
            continue
    raise UnsupportedSkillError("this checkpoint was trained for captions, but of no length")
