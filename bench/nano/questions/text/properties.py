"""Names of properties in schemas: by meaning, those that say nothing, and those whose value no picture tells.

About one name in five is held out of training: a hash of its words decides, so that a name is held out in all styles.
The commonest names (`ALWAYS`) are trained.
"""

import functools
import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from bench.nano.questions.text.language import Split, nonsense_word

Meaning = Literal[
    "count", "present", "name", "colour", "where", "box", "plain", "caption", "unknown", "email", "date", "time",
]  # fmt: skip
"""What a name asks for. "plain": nothing; the question and the value's type decide. "unknown" and those behind it: what
no picture of objects tells."""
MEANINGS: tuple[Meaning, ...] = get_args(Meaning)
Style = Literal["snake", "camel", "pascal", "kebab"]
STYLES: tuple[Style, ...] = get_args(Style)

_NAMES: Mapping[Meaning, str] = {
    "count": "count n num number total qty quantity amount how_many cnt tally nr no_of total_count total_number "
    "num_found n_found found_count number_found instances num_instances instance_count occurrences how_many_are_there "
    "number_of_them count_of_them count_total number_seen the_count counted frequency num_seen total_found n_total "
    "number_in_picture count_in_image quantity_found amount_found sum_total",
    "present": "present is_there visible found there exists is_visible is_present any is_in_picture is_here in_picture "
    "in_image available detected is_found is_detected seen is_seen can_be_seen has_any any_found any_there appears "
    "is_shown shown is_any_there exists_in_picture there_is_one contained is_available was_found has_it are_there "
    "has_some is_it_there at_least_one some_present",
    "name": "name object thing item kind label what type title object_name item_name which what_is_it class class_name "
    "category_name object_type thing_name what_thing kind_of_thing object_label identity called noun object_class "
    "item_type species denomination object_kind",
    "colour": "colour color colour_name color_name main_colour main_color dominant_color hue tint paint "
    "colour_of_it color_of_it what_colour what_color primary_color shade object_color its_color",
    "where": "where position point center centre location place spot zone where_is_it coordinates located_at pos loc "
    "centre_point center_point whereabouts its_position found_at middle part_of_picture xy",
    "box": "box bbox bounding_box region area frame rect rectangle bounds box_2d bounding_rect extent outline_box "
    "object_box its_box box_of_it",
    "plain": "answer result value response output reply x y z a b c v val res ans out ret return_value foo bar baz qux "
    "data field field_1 field_2 prop property attr attribute var variable tmp my_answer final_answer the_answer "
    "solution prediction pred guess estimate outcome finding findings verdict decision conclusion info information "
    "metric stat feature signal payload param parameter argument slot cell entry record row column token element "
    "something stuff it this that q q1 a1 task test state flag check observation measurement reading returned computed "
    "my_value my_field the_value the_result result_1 value_1 value_2 answer_1 answer_text answer_value short_answer "
    "output_value model_output response_value reply_text inference outcome_1 fact truth claim evaluation judgement "
    "opinion interpretation assessment analysis determination resolved derived actual expected given correct_answer "
    "alpha beta gamma delta omega one_value my_result my_output res_1 out_1 obj arg0 arg1 field_a field_b xyz abc tmp1 "
    "content_1 attribute_1 characteristic trait parameter_1 statistic indicator measure score_value result_value "
    "measured marked noted logged tracked sampled checked verified weighed summed gathered listed grouped "
    "sorted ranked picked chosen selected declared assigned stored loaded printed written_out shown_value "
    "first second third last final initial main primary secondary major minor basic simple complete whole "
    "partial overall general specific common special usual normal standard default custom local global "
    "internal external public private static dynamic active passive pending ready valid current previous next "
    "recent latest early late fast slow short_form long_form raw clean exact rough best better good great fine "
    "real true_value ground_truth gold label_value score points_value grade level rank order index "
    "position_value offset step stage phase round turn move play goal aim target purpose reason cause effect "
    "consequence product sum_value ratio rate share part unit portion section segment chapter_value line "
    "bucket_value bin group_value set_value list_value array vector tensor scalar node edge path link_value "
    "source origin destination end start begin stop middle_value number_like word phrase text_value sign_value "
    "symbol mark note remark comment hint tip clue proof evidence reply_value report summary_value digest "
    "brief message_value statement saying expression formula term factor function method process action act "
    "event case instance example sample",
    "caption": "description caption summary overview scene_description image_description picture_description sentence "
    "explanation details what_is_shown what_is_there what_i_see content_description short_description scene_summary "
    "describe depiction alt_text text_description contents_as_text",
    "unknown": "price cost price_usd price_eur brand manufacturer model serial_number barcode owner author artist "
    "photographer person person_name customer username user_name first_name last_name full_name surname age gender "
    "address street city country zip_code postcode phone_number url website link text written_text "
    "text_in_picture text_in_image ocr ocr_text inscription license_plate temperature weight weight_kg material flavor "
    "flavour taste smell sound emotion mood weather season language currency id object_id uuid sku isbn version "
    "camera_model file_name filename copyright license sender recipient message password account iban latitude "
    "longitude altitude speed duration battery_level company company_name vendor seller supplier discount tax rating "
    "review reviews stock_level warranty birthday nationality job profession salary employer hobby religion "
    "capital_city population ingredient calories recipe expiry origin_country store shop_name order_number invoice "
    "tracking_number reference_number patient diagnosis doctor hospital flight seat team player song album movie "
    "book_title isbn13 publisher page_number chapter quote slogan logo_text headline_text sign_text handwriting "
    "signature stamp_text",
    "email": "email e_mail email_address contact_email mail mail_address user_email owner_email",
    "date": "date day created_on date_taken purchase_date expiry_date birth_date date_of_birth sell_by_date due_date",
    "time": "time timestamp created_at updated_at datetime date_time taken_at time_of_day clock_time captured_at",
}  # fmt: skip

MENTIONS: Mapping[Meaning, str] = {
    "count": "{1} num_{1} n_{1} number_of_{1} count_of_{1} {0}_count {1}_count total_{1} how_many_{1} {0}_quantity "
    "{1}_total qty_{1} amount_of_{1} {0}_number visible_{1} {0}_cnt nr_of_{1} {1}_num count_{1} {1}_amount "
    "number_of_all_{1} num_of_{1} {0}_total {1}_in_picture {1}_qty",
    "present": "has_{0} has_{1} {0}_present is_{0}_present {1}_present contains_{0} contains_{1} is_there_a_{0} "
    "are_there_{1} any_{1} {0}_exists {0}_visible {0}_found shows_{0} includes_{0} with_{0} {0}_there {0}_detected "
    "{0}_in_picture sees_{0} there_is_a_{0} is_a_{0}_visible has_any_{1} includes_{1} {1}_visible {1}_exist "
    "found_{0} have_{1}",
    "name": "{0} the_{0} the_{1} {0}_1 my_{0} this_{0}",
    "colour": "{0}_colour {0}_color color_of_{0} colour_of_{0} color_of_the_{0} {0}_hue",
    "where": "{0}_position {0}_location where_is_{0} position_of_{0} {0}_place {0}_zone location_of_{0} {0}_center "
    "{0}_point {0}_where where_is_the_{0}",
    "box": "{0}_box {0}_bbox box_of_{0} {0}_bounding_box {0}_region {0}_area",
    "unknown": "{0}_price price_of_{0} {0}_brand {0}_weight {0}_owner owner_of_{0} {0}_id",
}  # fmt: skip
"""Names that mention an object: {0} is its singular, {1} its plural."""
_ALWAYS = """
    count how_many number amount total quantity present is_there visible found there exists is_visible name object
    thing item kind label what type title colour color colour_name color_name box bbox bounding_box region area frame
    where position point center centre location place spot answer result value description caption {1} {0} num_{1}
    {0}_count has_{0} {0}_color {0}_position {0}_box
"""
ALWAYS = frozenset(_ALWAYS.split())
"""Trained in any case."""

FILLERS: Mapping[Meaning, str] = {
    "unknown": "none", "email": "none@none.none", "date": "2000-01-01", "time": "00:00:00Z",
}  # fmt: skip
"""What stands for a text that no picture tells where a schema allows no empty one."""

_RANDOM_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_HELD_OUT_ONE_IN = 5


def is_held_out(name: str) -> bool:
    """Whether a name or template, in snake case, is kept for evaluation."""
    return name not in ALWAYS and hashlib.sha256(name.encode()).digest()[1] % _HELD_OUT_ONE_IN == 0


@functools.cache
def names(meaning: Meaning, split: Split) -> tuple[str, ...]:
    """Return the names of a meaning in snake case."""
    return tuple(name for name in _NAMES[meaning].split() if is_held_out(name) == (split == "held_out"))


@functools.cache
def mentions(meaning: Meaning, split: Split) -> tuple[str, ...]:
    """Return the templates of names that mention an object."""
    return tuple(one for one in MENTIONS[meaning].split() if is_held_out(one) == (split == "held_out"))


def mention(template: str, singular: str, plural: str) -> str:
    """Fill a template: snake case, whatever the words of the object's name are separated by."""
    return template.format(*("_".join(re.findall(r"[^\W_]+", word)) for word in (singular, plural)))


def random_name(rng: random.Random, split: Split) -> str:
    """Invent a name that means nothing: letters, perhaps with a number, or one or two words."""
    while True:
        shape = rng.random()
        if shape < 0.5:
            name = "".join(rng.choices(_RANDOM_LETTERS, k=rng.randint(1, 8)))
        elif shape < 0.8:
            name = nonsense_word(rng, split)
        else:
            name = f"{nonsense_word(rng, split)}_{nonsense_word(rng, split)}"
        if rng.random() < 0.2:
            name += f"_{rng.randint(0, 99)}" if rng.random() < 0.5 else str(rng.randint(0, 99))
        if name not in known() and is_held_out(name) == (split == "held_out"):
            return name


@functools.cache
def known() -> frozenset[str]:
    """Return all names that have a meaning."""
    return frozenset(name for meaning in MEANINGS for name in _NAMES[meaning].split())


def styled(name: str, style: Style) -> str:
    """Write a snake-case name in a style: num_bananas, numBananas, NumBananas, num-bananas."""
    words = name.split("_")
    if style == "snake":
        return name
    if style == "kebab":
        return "-".join(words)
    capitals = "".join(word[:1].upper() + word[1:] for word in words)
    return capitals if style == "pascal" else words[0] + capitals[len(words[0]) :]


def random_style(rng: random.Random) -> Style:
    return rng.choices(STYLES, (5, 3, 1, 1))[0]


def variants(given: Sequence[str]) -> tuple[str, ...]:
    """Return each name three times as it is, and once in each other style that differs."""
    styles = [dict.fromkeys(styled(name, one) for one in STYLES) for name in given]
    return tuple(style for one in styles for style in (next(iter(one)), next(iter(one)), *one))
