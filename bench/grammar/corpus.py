"""Count the schemas of a corpus that compile, and their instances: `python -m bench.grammar.corpus FOLDER`.

The files of a folder are like those of MaskBench (JSONSchemaBench, `maskbench/data`): `{"schema": ..., "tests":
[{"valid": true, "data": ...}]}`. An instance is accepted if its JSON text is, compact or with a space after each comma
and colon, in the order of the file. Refused schemas are counted by error and keyword. Compile time is limited as in the
engine.
"""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.grammar.samples import shipped
from photonlite.config import EngineConfig
from photonlite.errors import GrammarError
from photonlite.grammar.automata.tables import AutomatonTables
from photonlite.grammar.compiler.client import GrammarCompiler
from photonlite.skills.typed.forms import TextForm, form_of


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.grammar.corpus", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1, help="take each so many-th file, by name")
    options = parser.parse_args(arguments)
    counts, refusals = count(sorted(options.folder.glob("*.json"))[:: options.every])
    for name in ("schemas", "compiled", "valid", "valid accepted", "invalid", "invalid accepted"):
        print(f"{name:18}{counts[name]:8}")
    print("\n".join(f"{number:8}  {reason}" for reason, number in refusals.most_common(25)))


def count(files: Sequence[Path]) -> tuple[Counter[str], Counter[str]]:
    """Return counts of schemas and of instances of compiled ones, and how often each reason refused a schema."""
    counts: Counter[str] = Counter(schemas=len(files))
    refusals: Counter[str] = Counter()
    vocabulary = shipped()
    limit_s = EngineConfig().grammar_limit_s
    compiler = GrammarCompiler(lambda: vocabulary.pieces, vocabulary.ids, limit_s=limit_s, cache_bytes=0)
    for file in files:
        case = json.loads(file.read_text())
        try:
            form = form_of(case["schema"], None, None)
            assert isinstance(form, TextForm)
            tables = compiler.compile(form.spec).result().tables
        except GrammarError as error:
            refusals[" ".join(filter(None, (type(error).__name__, getattr(error, "keyword", ""))))] += 1
            continue
        counts["compiled"] += 1
        for test in case.get("tests", ()):
            kind = "valid" if test["valid"] else "invalid"
            counts[kind] += 1
            counts[f"{kind} accepted"] += accepts(tables, test["data"])
    compiler.close()
    return counts, refusals


def accepts(tables: AutomatonTables, value: Any) -> bool:
    """Whether an answer may be a value, in one of both spacings."""
    return any(
        _accepts_text(tables, json.dumps(value, ensure_ascii=False, separators=separators).encode())
        for separators in ((",", ":"), (", ", ": "))
    )


def _accepts_text(tables: AutomatonTables, text: bytes) -> bool:
    state = tables.start
    for byte in text:
        state = int(tables.delta[state, tables.column[byte]])
        if state < 0:
            return False
    return bool(tables.accepts[state])


if __name__ == "__main__":
    main()
