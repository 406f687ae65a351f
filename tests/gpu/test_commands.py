import gzip
import json

import pytest

from bench import decode, e2e, vision
from bench.gpu import command
from bench.reference import Found


def run(main, tmp_path, *arguments):
    """Run a rehearsal; gives the exit code, the report, and its rows of figures by name."""
    page = tmp_path / "deep" / "page.md"
    code = main(["--device", "cpu", "--tiny", "--rounds", "1", "--output", str(page), *arguments])
    text = page.read_text()
    part = text.split("## Figures\n\n")[1].split("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines()]
    return code, text, {row[0]: row[1:] for row in cells[2:]}


@pytest.mark.long
def test_decoding_gives_a_period_a_floor_and_the_parts_of_a_step(tmp_path):
    code, text, rows = run(decode.main, tmp_path, "--only", "bf16", "boxes", "fp8_kv", "--trace", str(tmp_path))

    assert code == 0
    assert list(rows) == [
        *(f"{what}, {streams}" for what in ("words", "boxes", "words, FP8 KV") for streams in ("1 stream", "2 streams"))
    ]
    assert float(rows["words, 1 stream"][0]) > float(rows["words, 1 stream"][4]) > 0
    assert rows["boxes, 1 stream"][4] == "-"  # their heads differ from step to step
    assert "## A step on device and host" in text
    assert "python -m bench.decode --device cpu --tiny --rounds 1" in text
    with gzip.open(tmp_path / "decode-words-2_streams.json.gz") as trace:
        assert {"forward", "finalize"} <= {event["name"] for event in json.load(trace)["traceEvents"]}


@pytest.mark.long
def test_decoding_of_another_shape_tells_which_experts_are_met(tmp_path):
    code, text, rows = run(decode.main, tmp_path, "--only", "bf16", "--shape", "moondream3-fp8")

    assert code == 0
    assert list(rows) == ["words, 1 stream", "words, 2 streams"]
    met = text.split("## Different experts of a step, for random words\n\n")[1].split("\n\n")[0].splitlines()[2:]
    assert [line.strip("|").split("|")[0].strip() for line in met] == ["1", "2"]


@pytest.mark.long
def test_decoding_is_measured_on_several_ranks(tmp_path):
    code, text, rows = run(decode.main, tmp_path, "--only", "plain", "--tensor-parallel", "2")

    assert code == 0
    assert "--tensor-parallel 2" in text
    assert list(rows) == ["words, plain operations, 1 stream", "words, plain operations, 2 streams"]


def test_a_part_that_cannot_run_leaves_a_gap_and_its_reason(tmp_path, monkeypatch):
    monkeypatch.setitem(decode.VARIANTS, "plain", decode.Variant("odd", settings={"no_such_setting": 1}))
    code, text, rows = run(decode.main, tmp_path, "--only", "plain", "boxes")

    assert code == 1
    assert list(rows) == ["boxes, 1 stream", "boxes, 2 streams"]
    assert "no_such_setting" in text.split("## Not measured")[1]


@pytest.mark.long
def test_vision_gives_encoder_prefill_and_preprocessing(tmp_path):
    code, text, rows = run(vision.main, tmp_path)

    assert code == 0
    encoders = [f"vision encoder, {crops}" for crops in ("1 crop", "9 crops", "13 crops")]
    assert list(rows) == [
        *encoders,
        "prefill of 20 tokens",
        *(f"{name}, FP8 linears" for name in (*encoders, "prefill of 20 tokens")),
        "preprocessing 640x480, equal to Pillow",
        "preprocessing 1920x1080, equal to Pillow",
    ]
    assert all(float(row[0]) > 0 for row in rows.values())
    assert "## Encoder and its ceilings, FP8 linears" in text


@pytest.mark.long
def test_clients_get_answers_of_the_length_that_was_asked_for(tmp_path):
    code, text, rows = run(e2e.main, tmp_path, "--trace", str(tmp_path))

    assert code == 0
    assert [name for name in rows if "1 client" in name] == [
        "detect, 3 objects, 640x480, 1 client",
        "answer, 3 tokens, 850x600, 1 client",
        "point, 1 point, 378x378, 1 client",
        "answer, 3 tokens, 850x600, 1 client, plain operations",
        "answer, 3 tokens, 850x600, 1 client, FP8 linears",
    ]
    for name in ("coroutines", "threads"):
        assert rows[f"answers, 4 clients ({name})"][0].endswith("/s")
    assert "nan" not in text
    assert text.count("## Under load") == 4
    with gzip.open(tmp_path / "e2e-detect.json.gz") as trace:
        assert {"encode", "prefill"} <= {event["name"] for event in json.load(trace)["traceEvents"]}


@pytest.mark.long
@pytest.mark.parametrize("shape", ["qwen3-vl-2b", "paligemma2-3b"])
def test_other_families_answer_too_and_their_steps_are_looked_at(tmp_path, shape):
    code, text, rows = run(e2e.main, tmp_path, "--shape", shape, "--only", "answer", "detect", "steps", "plain")

    assert code == 0
    assert list(rows) == [f"answer, 3 tokens, 850x600, 1 client{more}" for more in ("", ", plain operations")]
    steps = text.split("## Steps\n\n")[1].split("\n\n")[0].splitlines()[2:]
    assert [line.strip("|").split("|")[0].strip() for line in steps] == [
        f"{streams}{more}" for more in ("", ", plain operations") for streams in ("1 stream", "2 streams")
    ]
    assert "nan" not in text


def test_an_answer_of_another_length_is_no_figure(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.gpu.models.NEVER", 1e4)  # the end id is always chosen
    code, text, rows = run(e2e.main, tmp_path, "--only", "detect")

    assert code == 1
    assert list(rows) == []
    assert "the answer has a length of 0, not 3" in text


def test_the_reference_stands_beside_what_it_was_measured_for(tmp_path, monkeypatch):
    asked = []

    def ask(folder, device, parts, **options):
        asked.append((str(folder), parts))
        return Found({"decode": 0.5, "vision 9": 0.25}, {"decode_compiled": "it has no time"})

    monkeypatch.setattr(command, "ask", ask)
    code, text, rows = run(decode.main, tmp_path, "--only", "bf16", "reference", "--reference", "elsewhere")

    assert code == 1
    assert asked == [("elsewhere", ("decode", "decode_compiled"))]
    assert [rows[f"words, {streams}"][-1] for streams in ("1 stream", "2 streams")] == ["500.00", "-"]
    assert "reference, decode_compiled: it has no time" in text


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--only", "nothing"], ["--device", "tpu"]])
def test_senseless_arguments_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        vision.main(arguments)
    assert "error: " in capsys.readouterr().err
