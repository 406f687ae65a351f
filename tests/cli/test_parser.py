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
