"""What typed answers cost: `python -m bench.grammar`, and `--device cuda` on a machine with a card.

- masks: compiling, the mask of one row and taking a token, for the shipped vocabulary and for one of Moondream 2's
  size, beside xgrammar and llguidance where they are installed, all in the same process and run.
- shipped: the period of decoding on the shipped checkpoint, with grammars and without.
- moondream2: the same at Moondream 2's shape with random weights, up to 32 streams; by default on a card only.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace

from bench.bubble.subjects import PROMPT, SPREAD, STOP, Subject
from bench.gpu.command import Bench, Options, parse
from bench.gpu.models import NEVER, endless_model, prompts_of
from bench.grammar.masks import measure
from bench.grammar.samples import Vocabulary, large, shipped
from bench.grammar.speed import Speed
from photonlite.grammar.automata.tables import SpecialIds
from photonlite.models.families import LoadOptions
from photonlite.models.loading import resolve
from photonlite.models.moondream.model import MoondreamModel
from photonlite.models.moondream.prompts import MoondreamPrompts
from photonlite.models.moondream.weights import load_model

PARTS = ("masks", "shipped", "moondream2")

NOTES = """\
- Compile: median, nothing remembered, the vocabulary already read. "In its worker": from asking `GrammarCompiler` to
  the automaton in this process. llguidance only checks a grammar when it compiles, and makes its tables as states are
  met; xgrammar works with one thread.
- Mask of one row: median over the positions of a text that belongs to the spec, once its states have been met; the
  next table has the longest while they are met the first time. For photonlite it is the lookup of what is allowed and
  the copy of the row into the batch's.
- Take a token: the grammar's move from one position to the next.
- Ratios are times of the other library over photonlite's: above 1, photonlite is quicker.
- Decoding: periods from commit to commit at full batch, median of rounds, as in `bench.decode`; all ways take turns,
  and a ratio is the median of those to the same round without a grammar. Host tick: the host's work in a period, of a
  traced round."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = parse("bench.grammar", __doc__, PARTS, arguments)
    model = "the shipped checkpoint, and where it is named Moondream 2's shape with random weights"
    bench = Bench("Grammars: compiling, masks, constrained decoding", options, model=model, figures=False)
    if "masks" in options.only:
        for make in (shipped,) if options.tiny else (shipped, large):
            bench.attempt(f"masks, {make.__name__}", lambda make=make: _masks(bench, make()))  # type: ignore[misc]
    if "shipped" in options.only:
        bench.attempt("shipped", lambda: Speed(bench, shipped_subject(options), shipped(), _few(options)).run())
    if "moondream2" in options.only and (options.cuda or options.tiny):
        bench.attempt("moondream2", lambda: _moondream2(bench))
    return bench.finish(NOTES)


def shipped_subject(options: Options) -> Subject:
    """Load the shipped checkpoint, and keep it from ending its answers."""
    files = resolve(None)
    model = load_model(files.weights, files.config, LoadOptions(options.where, options.dtype))
    prompt, spread, stop = (40, 5, 120) if options.tiny else (300, SPREAD, 400)
    return _endless("the shipped checkpoint", model, options, (prompt, spread, stop))


def _moondream2(bench: Bench) -> None:
    options = bench.options
    model = endless_model(bench.config, options.where, options.dtype)
    lengths = (40, 5, 120) if options.tiny else (PROMPT, SPREAD, STOP)
    special = model.config.tokenizer
    vocabulary = shipped() if options.tiny else large()
    ids = SpecialIds(special.eos_id, special.coord_id, special.size_id, vocabulary.ids.vocab_size)
    vocabulary = replace(vocabulary, ids=ids)
    streams = (1, 2) if options.tiny else (1, 8, 32)
    subject = _endless("Moondream 2's shape, random weights", model, options, lengths)
    Speed(bench, subject, vocabulary, streams).run()


def _endless(name: str, model: MoondreamModel, options: Options, lengths: tuple[int, int, int]) -> Subject:
    model.text.lm_head.bias[model.config.tokenizer.eos_id] = NEVER
    prompts: MoondreamPrompts = prompts_of(model.config)
    prompt, spread, stop = lengths
    return Subject(name, model, prompts.vocabulary, options.where, options.dtype, stop, prompt, spread)


def _masks(bench: Bench, vocabulary: Vocabulary) -> None:
    rounds = 1 if bench.options.tiny else bench.options.rounds
    bench.section(f"Compiling and masks: {vocabulary.name}", measure(vocabulary, rounds))


def _few(options: Options) -> tuple[int, ...]:
    return (1, 2) if options.tiny else (1, 8)


if __name__ == "__main__":
    sys.exit(main())
