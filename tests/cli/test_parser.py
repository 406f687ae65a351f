import re
from pathlib import Path

import pytest

from photonlite.cli.parser import EXAMPLES, SUMMARIES, parse
from photonlite.errors import InputError


@pytest.mark.parametrize("command", ["detect", "point", "segment", "query"])
def test_the_last_argument_is_the_text(command: str) -> None:
    options = parse([command, "a.png", "b.png", "teddy bear"])

    assert options.command == command
    assert options.images == ["a.png", "b.png"]
    assert options.text == "teddy bear"


def test_caption_takes_images_only() -> None:
    options = parse(["caption", "a.png", "b.png"])

    assert options.images == ["a.png", "b.png"]
    assert options.text is None
    assert options.length == "normal"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--plot", "o.png", "a.png", "mug"],
        ["a.png", "--plot", "o.png", "mug"],
        ["a.png", "mug", "--plot", "o.png"],
    ],
)
def test_options_may_stand_anywhere(arguments: list[str]) -> None:
    options = parse(["detect", *arguments])

    assert (options.images, options.text, options.plot) == (["a.png"], "mug", "o.png")


@pytest.mark.parametrize(
    ("arguments", "images", "text"),
    [
        (["--", "-x.png", "banana"], ["-x.png"], "banana"),
        (["--json", "--", "-x.png", "banana"], ["-x.png"], "banana"),
        (["desk.png", "--json", "--", "banana"], ["desk.png"], "banana"),
        (["desk.png", "--", "--json"], ["desk.png"], "--json"),
        (["--", "desk.png", "--", "banana"], ["desk.png", "--"], "banana"),
    ],
)
def test_two_dashes_end_the_options(arguments: list[str], images: list[str], text: str) -> None:
    options = parse(["detect", *arguments])

    assert (options.images, options.text) == (images, text)
    assert options.json == ("--json" in arguments and text != "--json")


def test_two_dashes_end_the_options_of_other_commands() -> None:
    assert parse(["verify", "--json", "--", "-model"]).model == "-model"
    with pytest.raises(InputError, match="unrecognized arguments: -x"):
        parse(["models", "--", "-x"])


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["detect", "a.png", "banana", "cup"], "--object 'banana' --object 'cup'"),
        (["detect", "a.png", "teddy bear", "b.png", "cup"], "--object 'teddy bear' --object 'cup'"),
        (["segment", "a.png", "banana", "--object", "cup"], "--object 'banana' --object 'cup'"),
        (["query", "a.png", "How", "many?"], "put the question in quotes"),
    ],
)
def test_words_that_are_no_images_are_refused_with_what_to_give(arguments: list[str], advice: str) -> None:
    with pytest.raises(InputError, match=f"there is no image '{arguments[2]}': .*{re.escape(advice)}"):
        parse(arguments)


def test_an_image_needs_no_suffix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photo").touch()
    monkeypatch.chdir(tmp_path)

    assert parse(["detect", "a.png", "photo", "b*", "c/d", "mug"]).images == ["a.png", "photo", "b*", "c/d"]


def test_a_lone_dash_is_an_image() -> None:
    assert parse(["detect", "-", "mug"]).images == ["-"]


def test_settings_have_their_types_and_are_none_unless_given() -> None:
    options = parse(["detect", "a.png", "mug", "--temperature", "0.5", "--max-objects", "3"])

    assert (options.temperature, options.max_objects) == (0.5, 3)
    assert (options.top_p, options.max_tokens, options.seed) == (None, None, None)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "a command is missing"),
        (["find", "a.png"], "there is no command 'find'"),
        (["detect"], "required: IMAGE... OBJECT"),
        (["detect", "a.png"], "takes IMAGE and then OBJECT"),
        (["query", "How many?"], "takes IMAGE and then QUESTION"),
        (["caption"], "required: IMAGE..."),
        (["caption", "a.png", "--length", "tiny"], "invalid choice: 'tiny'"),
        (["detect", "a.png", "mug", "--max-objects", "many"], "invalid int value: 'many'"),
        (["detect", "a.png", "mug", "--dtype", "int8"], "invalid choice: 'int8'"),
        (["detect", "a.png", "mug", "--max-obj", "3"], "unrecognized arguments: --max-obj"),
        (["detect", "a.png", "mug", "--stream"], "unrecognized arguments: --stream"),
        (["caption", "a.png", "--max-objects", "3"], "unrecognized arguments: --max-objects"),
        (["detect", "-", "-", "mug"], "give - once"),
        (["caption", "a.png", "--stream", "--json"], "give one of them"),
        (["models", "a.png"], "unrecognized arguments: a.png"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint.replace(".", r"\.").replace("?", r"\?")):
        parse(arguments)


@pytest.mark.parametrize("command", SUMMARIES)
def test_help_has_examples_that_parse(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse([command, "--help"])

    assert stop.value.code == 0
    assert EXAMPLES[command] in capsys.readouterr().out
    for line in EXAMPLES[command].splitlines():
        arguments = line.partition("photonlite ")[2].partition(" >")[0].replace('"', "'").split("'")
        # What is quoted is one word, the rest is words between spaces.
        words = [word for i, part in enumerate(arguments) for word in ([part] if i % 2 else part.split())]
        assert parse(words).command == command


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])

    out = capsys.readouterr().out
    for command, summary in SUMMARIES.items():
        assert f"{command:9} {summary}" in out


def test_with_named_objects_every_argument_is_an_image() -> None:
    options = parse(["detect", "a.png", "--object", "mug", "b.png", "--object", "key"])

    assert (options.images, options.text) == (["a.png", "b.png"], ["mug", "key"])
    with pytest.raises(InputError, match="arguments are required: IMAGE"):
        parse(["detect", "--object", "mug"])
