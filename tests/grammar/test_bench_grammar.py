"""A rehearsal of the benchmark, and what its figures rest on."""

import json
from pathlib import Path

import pytest

from bench.grammar import __main__ as command
from bench.grammar import corpus, libraries, masks
from bench.grammar.samples import samples, shipped
from photonlite.grammar.decoding.automaton import DEAD_END


@pytest.mark.long
def test_a_rehearsal_writes_all_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "samples", lambda: samples()[:3])  # the larger ones take seconds
    page = tmp_path / "page.md"
    code = command.main(["--device", "cpu", "--tiny", "--rounds", "1", "--output", str(page)])
    text = page.read_text()

    assert code == 0
    assert "python -m bench.grammar --device cpu --tiny" in text
    for what in ("compile", "mask of one row", "take a token"):
        assert f"| {what} " in text
    for model in ("the shipped checkpoint", "Moondream 2's shape, random weights"):
        part = text.split(f"## Decoding: {model}")[1].split("\n## ")[0]
        rows = [line.split("|")[1:3] for line in part.splitlines() if line.startswith("| ")][1:]
        assert [cell.strip() for row in rows for cell in row] == [
            cell
            for streams in ("1", "2")
            for what in ("without a grammar", "free text", "objects", "objects with boxes")
            for cell in (what, streams)
        ]
        assert "nan" not in part


@pytest.mark.long
def test_every_text_belongs_to_its_spec() -> None:
    vocabulary = shipped()
    own = libraries.Own(vocabulary)
    for sample in samples():
        automaton = own.compile(sample.spec)
        state = automaton.start
        for token_id in vocabulary.encode(sample.text) if sample.text else ():
            state = automaton.after(state, token_id)
        assert state != DEAD_END
        assert not sample.text or automaton.tables.accepts[state]


def test_a_library_that_does_not_compile_a_spec_leaves_a_gap_and_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no  such\nthing")

    vocabulary = shipped()
    monkeypatch.setattr(libraries.Own, "compile", fail)
    found = masks._attempt(libraries.Own(vocabulary), vocabulary, samples()[0], 1)

    assert found.refusal == "ValueError: no such thing"
    assert found.compile_s != found.compile_s


def test_a_corpus_is_counted_by_what_compiles_and_what_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tests = [{"valid": True, "data": {"a": 1}}, {"valid": True, "data": {"b": 1}}, {"valid": False, "data": {"a": "x"}}]
    schemas = [
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"not": {}},
    ]
    for number, schema in enumerate(schemas):
        (tmp_path / f"{number}.json").write_text(json.dumps({"schema": schema, "tests": tests}))

    corpus.main([str(tmp_path)])

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["schemas", "2"],
        ["compiled", "1"],
        ["valid", "2"],
        ["valid", "accepted", "1"],
        ["invalid", "1"],
        ["invalid", "accepted", "0"],
        ["1", "SchemaError", "not"],
    ]
