import threading

from tests.beside import Beside


def test_programs_are_run_with_their_arguments() -> None:
    programs = [("base64", "-t"), ("json.tool", "--help")]
    beside = Beside(programs)

    ended = [beside.wait_for(program) for program in programs]
    beside.close()

    assert [one.returncode for one in ended] == [0, 0]
    assert "Aladdin" in ended[0].stdout
    assert "--sort-keys" in ended[1].stdout


def test_a_program_that_fails_says_why() -> None:
    beside = Beside([("json.tool", "/no/such/file")])

    ended = beside.wait_for(("json.tool", "/no/such/file"))
    beside.close()

    assert ended.returncode != 0
    assert "/no/such/file" in ended.stderr


def test_closing_ends_a_program_that_would_run_on() -> None:
    beside = Beside([("http.server", "0", "--bind", "127.0.0.1"), ("http.server", "0")])

    closing = threading.Thread(target=beside.close, daemon=True)
    closing.start()
    closing.join(60)

    assert not closing.is_alive()
