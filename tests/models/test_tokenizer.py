import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from photonlite.errors import CheckpointError, PromptError
from photonlite.models.tokenizer import MAX_CHARACTERS, IncrementalDetokenizer, Tokenizer
from tests.models.checkpoints import GOLDEN

PATH = GOLDEN / "tokenizer.json"
NANO = Path(__file__).parents[2] / "assets" / "nano" / "tokenizer.json"
RAW: dict[str, Any] = json.loads(PATH.read_text())
GOLDEN_TOKENIZER = Tokenizer(PATH, vocab_size=272, controls_to=21)
CONTROLS = [token["content"] for token in RAW["added_tokens"]]
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())["cases"]
COORD = 5

Variant = Callable[[Callable[[dict[str, Any]], object]], Path]

needs_nano = pytest.mark.skipif(not NANO.exists(), reason="the shipped tokenizer is not there")


def added(content: str, index: int, *, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": content, "special": special, **flags}


@pytest.fixture
def variant(tmp_path: Path) -> Variant:
    """Write the golden tokenizer.json with a change."""

    def write(change: Callable[[dict[str, Any]], object]) -> Path:
        raw = json.loads(PATH.read_text())
        change(raw)
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps(raw))
        return path

    return write


def stream(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer)
    return [*map(detokenizer.feed, ids), detokenizer.flush()]


def test_golden_prompts_come_out_exactly() -> None:
    for case in EXPECTED:
        assert [1, 77, 2, *GOLDEN_TOKENIZER.encode(" red ball"), 3] == case["detect_prompt_ids"]
        assert [1, 89, 2, *GOLDEN_TOKENIZER.encode(" red ball"), 3] == case["point_prompt_ids"]
        assert [1, 90, 2, *GOLDEN_TOKENIZER.encode("what is here?"), 3] == case["query_prompt_ids"]


def test_pieces_with_small_ids_that_are_no_controls_stay_usable() -> None:
    assert GOLDEN_TOKENIZER.encode("!\"#$%&'()*+") == list(range(10, 21))


@pytest.mark.parametrize("content", CONTROLS)
@pytest.mark.parametrize("frame", ["{}", "a {} b", "{0}{0}", " {}!"])
def test_spelled_control_tokens_are_text(content: str, frame: str) -> None:
    text = frame.format(content)
    ids = GOLDEN_TOKENIZER.encode(text)
    assert min(ids) > 9
    assert GOLDEN_TOKENIZER.decode(ids) == text


@needs_nano
def test_spelled_control_tokens_are_text_for_the_shipped_tokenizer() -> None:
    tokenizer = Tokenizer(NANO, controls_to=21)
    for token in json.loads(NANO.read_text())["added_tokens"]:
        ids = tokenizer.encode(f"a{token['content']}")
        assert min(ids) > 20
        assert tokenizer.decode(ids) == f" a{token['content']}"


@given(st.lists(st.sampled_from([*CONTROLS, "<|", "|>", "coord", "size", " ", "é", "\n"]), min_size=1).map("".join))
def test_no_text_makes_a_control_token(text: str) -> None:
    if text.strip():
        assert min(GOLDEN_TOKENIZER.encode(text)) > 9


def test_only_user_text_is_normalized(variant: Variant) -> None:
    lower = {"type": "Lowercase"}
    tokenizer = Tokenizer(variant(lambda raw: raw.update(normalizer=lower)), controls_to=21)
    assert tokenizer.decode(tokenizer.encode("No Way")) == "no way"
    assert tokenizer.decode(tokenizer.spell("No Way")) == "No Way"
    assert min(tokenizer.spell("<|coord|>")) > 9
    assert GOLDEN_TOKENIZER.spell("No Way") == GOLDEN_TOKENIZER.encode("No Way")


def test_an_added_token_below_the_control_ids_is_a_control_even_if_the_file_does_not_say_so(variant: Variant) -> None:
    path = variant(lambda raw: raw["added_tokens"][COORD].update(special=False))
    assert COORD in Tokenizer(path).encode("<|coord|>")
    tokenizer = Tokenizer(path, controls_to=21)
    assert COORD not in tokenizer.encode("<|coord|>")
    assert tokenizer.decode([COORD, 10]) == "!"


def test_an_added_token_above_the_control_ids_is_text(variant: Variant) -> None:
    tokenizer = Tokenizer(
        variant(lambda raw: raw["added_tokens"].append(added("hot dog", 266, special=False))), controls_to=21
    )
    assert tokenizer.encode("a hot dog")[-1] == 266
    assert tokenizer.decode([266, 10]) == "hot dog!"


def test_text_that_only_a_control_id_can_spell_is_refused() -> None:
    tokenizer = Tokenizer(PATH, control_ids=[10])
    with pytest.raises(PromptError, match=r"'!'.*leave it out"):
        tokenizer.encode("hello!")
    assert tokenizer.encode("hello")


def test_neither_post_processor_nor_truncation_nor_padding_touch_the_ids(variant: Variant) -> None:
    plain = GOLDEN_TOKENIZER.encode("red ball")
    library = tokenizers.Tokenizer.from_file(str(PATH))
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    library.enable_truncation(3)
    library.enable_padding(length=20, pad_id=0, pad_token="<|endoftext|>")
    path = variant(lambda raw: raw.update(json.loads(library.to_str())))
    assert Tokenizer(path).encode("red ball") == plain


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "\u3000"])
def test_blank_text_is_refused(text: str) -> None:
    with pytest.raises(PromptError, match="is empty"):
        GOLDEN_TOKENIZER.encode(text)


def test_text_over_the_limit_is_refused_with_the_limit() -> None:
    assert len(GOLDEN_TOKENIZER.encode("x" * MAX_CHARACTERS)) == MAX_CHARACTERS
    with pytest.raises(PromptError, match=f"10000 characters: give at most {MAX_CHARACTERS}"):
        GOLDEN_TOKENIZER.encode("x" * 10_000)


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(PromptError, match="not valid Unicode at character 4"):
        GOLDEN_TOKENIZER.encode("ball\ud800")


@pytest.mark.parametrize("text", [None, b"ball", 3])
def test_values_that_are_not_strings_are_refused(text: Any) -> None:
    with pytest.raises(PromptError, match="give a str"):
        GOLDEN_TOKENIZER.encode(text)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60))
def test_text_round_trips(text: str) -> None:
    if text.strip():
        assert GOLDEN_TOKENIZER.decode(GOLDEN_TOKENIZER.encode(text)) == text


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": "1.0"}'])
def test_a_corrupt_file_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a readable"):
        Tokenizer(path)


def test_a_tokenizer_of_another_kind_is_refused(variant: Variant) -> None:
    path = variant(lambda raw: raw.update(decoder={"type": "Fuse"}))
    with pytest.raises(CheckpointError, match="decoder of type Fuse"):
        Tokenizer(path)


def test_more_tokens_than_the_model_has_rows_are_refused() -> None:
    assert Tokenizer(PATH, vocab_size=266)
    with pytest.raises(CheckpointError, match="266 tokens but the model has 265 rows"):
        Tokenizer(PATH, vocab_size=265)


IDS = st.lists(st.integers(0, 271), max_size=40)


@given(IDS)
def test_decoding_agrees_with_the_library(ids: list[int]) -> None:
    library = tokenizers.Tokenizer.from_file(str(PATH))
    assert GOLDEN_TOKENIZER.decode(ids) == library.decode(ids, skip_special_tokens=True)


@given(IDS)
def test_pieces_join_to_what_decode_gives(ids: list[int]) -> None:
    assert "".join(stream(GOLDEN_TOKENIZER, ids)) == GOLDEN_TOKENIZER.decode(ids)


@pytest.mark.long
@needs_nano
@given(st.data())
def test_pieces_of_the_shipped_tokenizer_join_to_what_the_library_gives(data: st.DataObject) -> None:
    library = tokenizers.Tokenizer.from_file(str(NANO))
    ids = data.draw(st.lists(st.integers(0, library.get_vocab_size() + 5), max_size=40))
    pieces = stream(Tokenizer(NANO, controls_to=21), ids)
    assert "".join(pieces) == library.decode(ids, skip_special_tokens=True)


@given(st.text(alphabet=st.sampled_from("aé日🍌\u200d👩 "), min_size=1, max_size=20))
def test_characters_are_returned_once_complete(text: str) -> None:
    if not text.strip():
        return
    ids = GOLDEN_TOKENIZER.encode(text)
    pieces = stream(GOLDEN_TOKENIZER, ids)
    assert "\ufffd" not in "".join(pieces)
    # The golden vocabulary has one token a byte: a character is there exactly when its last byte is.
    ends = [n for n, index in enumerate(ids) if pieces[n]]
    lengths = [len(character.encode()) for character in text]
    assert ends == [sum(lengths[: n + 1]) - 1 for n in range(len(lengths))]


def test_an_incomplete_character_ends_as_one_replacement() -> None:
    banana = GOLDEN_TOKENIZER.encode("🍌")
    assert stream(GOLDEN_TOKENIZER, banana[:3]) == ["", "", "", "\ufffd"]
    assert stream(GOLDEN_TOKENIZER, [*banana[:2], 10]) == ["", "", "\ufffd!", ""]


def test_a_detokenizer_can_start_again_after_its_end() -> None:
    detokenizer = IncrementalDetokenizer(GOLDEN_TOKENIZER)
    banana = GOLDEN_TOKENIZER.encode("🍌")
    detokenizer.feed(banana[0])
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""
    assert "".join(map(detokenizer.feed, banana)) == "🍌"


def test_special_tokens_do_not_split_a_character() -> None:
    first, *rest = GOLDEN_TOKENIZER.encode("é")
    assert "".join(stream(GOLDEN_TOKENIZER, [first, COORD, *rest])) == "é"


def test_a_stream_reads_each_id_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer(PATH)
    seen: list[int] = []
    piece = tokenizer.piece

    def watched(index: int) -> bytes:
        seen.append(index)
        return piece(index)

    monkeypatch.setattr(tokenizer, "piece", watched)
    ids = GOLDEN_TOKENIZER.encode("a banana on a desk " * 100)
    stream(tokenizer, ids)
    assert seen == ids


@pytest.fixture
def falling_back(tmp_path: Path) -> Tokenizer:
    """A tokenizer as SentencePiece builds them: a few letters and words, bytes for all other characters."""
    vocab = {"<pad>": 0, "<eos>": 1, "<place>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    vocab |= {text: 259 + place for place, text in enumerate(("▁", "m", "u", "g", "▁m", "▁mu", "▁mug", "é"))}
    merges = [("▁", "m"), ("▁m", "u"), ("▁mu", "g")]
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges, byte_fallback=True))
    made.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    steps = [tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
    made.decoder = tokenizers.decoders.Sequence(steps)
    made.add_special_tokens(["<pad>", "<eos>"])
    made.add_tokens(["<place>"])
    made.save(str(tmp_path / "tokenizer.json"))
    return Tokenizer(tmp_path / "tokenizer.json", control_names="<place>")


@pytest.mark.parametrize("text", [" mug", "mug mug", "é ñ", "漢字\n€", "😀", "a<0xFF>b", "  mug  "])
def test_a_tokenizer_that_falls_back_to_bytes_gives_texts_back(falling_back: Tokenizer, text: str) -> None:
    ids = falling_back.encode(text)

    assert falling_back.spell(text) == ids
    assert falling_back.decode(ids) == text
    assert "".join(stream(falling_back, ids)) == text
    assert b"".join(falling_back.piece(index) for index in ids) == text.encode()


def test_pieces_of_a_tokenizer_that_falls_back_are_bytes_and_text(falling_back: Tokenizer) -> None:
    pieces = falling_back.pieces(267)

    assert falling_back.encode(" mug") == [265]
    assert pieces[265:] == [b" mug", "é".encode()]
    assert pieces[3 : 3 + 256] == [bytes([byte]) for byte in range(256)]
    assert pieces[:3] == [b"", b"", b""]
    assert falling_back.added["<place>"] == 2


def test_text_is_not_encoded_to_named_control_tokens(falling_back: Tokenizer) -> None:
    assert falling_back.decode([2]) == "<place>"
    with pytest.raises(PromptError, match="<place>"):
        falling_back.encode("mug <place>")


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": None},
        {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "_"}},
        {"decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}},
    ],
)
def test_a_tokenizer_that_spells_spaces_otherwise_is_refused(
    falling_back: Tokenizer, tmp_path: Path, change: dict[str, Any]
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))

    with pytest.raises(CheckpointError, match="that fall back to bytes"):
        Tokenizer(path)
