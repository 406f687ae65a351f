"""Turn a training run into the shipped checkpoint: `python -m bench.nano.training.publish RUN`.

With `--figures` it also writes the table of the model card, from files that `bench.nano.evaluation` and
`bench.nano.evaluation.photographs` wrote.
"""

import argparse
import json
import math
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from bench.nano.questions.layout import COORD
from bench.nano.questions.tokenizer import TOKENIZER_JSON

ASSETS = TOKENIZER_JSON.parent
LIMIT = 18_100_000
_DRAWING = "reliability.png"
_BIAS = "model.text.lm_head.bias"
_BEGIN, _END = "<!-- figures -->", "<!-- end of figures -->"


def publish(run: Path, folder: Path, kept: Sequence[tuple[str, float]] = (), doubt: float = 0.0) -> int:
    """Write config, tokenizer and weights to `folder`; returns the size of the weights in bytes.

    Weights whose name holds the first of a pair of `kept` are averages, by the first pair that fits: its share is what
    the folder had before, the rest the run's. `doubt` is subtracted from the run's own bias of the token that begins a
    box, a point or an outline, of which no share is kept: all three must be so many logits likelier, and scores fall.
    """
    if not 0 <= doubt < math.inf:
        raise ValueError(f"the doubt is {doubt}: it must be a number of logits, at least 0")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "model.safetensors"
    weights = load_file(run / "model.safetensors")
    begin = weights[_BIAS][COORD]
    for names, share in kept:
        if not 0 <= share < 1:
            raise ValueError(f"the share of {names!r} that is kept is {share}: it must be at least 0 and below 1")
        if not any(names in name for name in weights):
            raise ValueError(f"no weight has {names!r} in its name, of which a share is to be kept: correct it")
    if kept:
        if not target.exists():
            raise ValueError(f"{folder} has no weights of which a share could be kept: publish the run without --kept")
        for name, before in load_file(target).items():
            share = next((share for names, share in kept if names in name), 0.0)
            if share and name in weights:
                weights[name] = ((1 - share) * weights[name].float() + share * before.float()).to(before.dtype)
    if doubt:
        weights[_BIAS][COORD] = begin - doubt
    save_file(weights, target, metadata={"format": "pt"})
    target.chmod(0o644)
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    if folder != ASSETS:
        shutil.copy(TOKENIZER_JSON, folder)
    size = target.stat().st_size
    if size > LIMIT:
        raise ValueError(f"{target} has {size} bytes, over the limit of {LIMIT}: make the model smaller")
    return size


def card_table(headline: Iterable[Mapping[str, Any]]) -> str:
    """Lay the rows of a headline out as Markdown: figure, 95 % interval, aim."""
    lines = ["| | figure | 95 % | aim |", "|---|---:|---:|---:|"]
    for row in headline:
        spread = "{:.3f} to {:.3f}".format(*row["interval"]) if row["interval"] else ""
        aim = f"{'at most ' if row['at_most'] else ''}{row['limit']:g}{'' if row['met'] else ', missed'}"
        figure = row["figure"] if isinstance(row["figure"], int) else f"{row['figure']:.3f}"
        lines.append(f"| {row['name']} | {figure} | {spread} | {aim} |")
    return "\n".join(lines)


def update_card(card: Path, figures: Sequence[Path]) -> None:
    """Write headlines from `figures` between the two marks of the model card.

    A drawing of reliability beside one of the files is copied to the folder above the card's, and shown below them.
    """
    text = card.read_text(encoding="utf-8")
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not end:
        raise ValueError(f"{card} has no lines {_BEGIN!r} and {_END!r}, between which the figures stand: add them")
    headline = [row for path in figures for row in json.loads(path.read_text(encoding="utf-8"))["headline"]]
    shown = card_table(headline)
    for drawing in filter(Path.exists, (path.with_name(_DRAWING) for path in figures)):
        shutil.copy(drawing, card.parent.parent)
        shown += f"\n\n![How often boxes are right, over their score](../{_DRAWING})\n"
    card.write_text(f"{before}{begin}\n{shown}\n{end}{after}", encoding="utf-8")


def _kept(text: str) -> tuple[str, float]:
    match = re.fullmatch(r"(.*)=([0-9.]+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAMES=SHARE, such as vision.=0.5, or =0.5 for all weights")
    return match[1], float(match[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder that training wrote")
    parser.add_argument("--folder", type=Path, default=ASSETS)
    parser.add_argument("--figures", type=Path, nargs="+", default=[], help="figures.json, photographs.json")
    kept = "share of the weights published before that stays, of those with NAMES in theirs; the first that fits counts"
    parser.add_argument("--kept", type=_kept, nargs="+", default=[], metavar="NAMES=SHARE", help=kept)
    doubt = "lower the logit that begins a box, a point or an outline by so much"
    parser.add_argument("--doubt", type=float, default=0.0, metavar="LOGIT", help=doubt)
    options = parser.parse_args()
    print(f"{publish(options.run, options.folder, options.kept, options.doubt):,} bytes")
    if options.figures:
        update_card(ASSETS / "README.md", options.figures)


if __name__ == "__main__":
    main()
