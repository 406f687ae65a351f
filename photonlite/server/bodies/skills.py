"""Bodies of Moondream's own routes: what `/v1/caption`, `query`, `detect`, `point` and `segment` take and answer."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, InstanceOf, PlainValidator
from pydantic_core import PydanticCustomError

from photonlite.request import MAX_STOP_CHARACTERS, MAX_STOPS
from photonlite.results import Metrics
from photonlite.server.bodies.base import (
    Body,
    Choices,
    Count,
    Flag,
    Json,
    JsonSchema,
    Text,
    Unit,
    must_be,
    shown,
    unusable,
)
from photonlite.server.calls import Skill
from photonlite.skills.names import MAX_NAMES

Temperature = Annotated[float, Field(ge=0, description="0 takes the likeliest token every time.")]
TopP = Annotated[Unit, Field(description="Sampling considers the likeliest up to this total probability.")]
TopK = Annotated[int, Field(ge=1, description="Sampling considers so many of the likeliest, before top_p.")]
RepetitionPenalty = Annotated[
    float, Field(ge=0.01, le=100, description="Above 1, words of the prompt and the answer so far become less likely.")
]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
_Sequence = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Stop = Annotated[
    _Sequence | Annotated[list[_Sequence], Field(max_length=MAX_STOPS)],
    Field(description="Sequences before which a text ends."),
]


class Settings(Body):
    """How to choose among tokens, and when to stop."""

    temperature: Temperature = 0
    top_p: TopP = 1
    top_k: TopK | None = None
    repetition_penalty: RepetitionPenalty = 1
    max_tokens: int | None = Field(None, ge=1, description="Tokens of a text or an outline at most.")
    max_objects: int | None = Field(None, ge=1, description="Boxes or points at most.")
    seed: Seed | None = Field(None, description="Makes samples repeatable.")
    stop: Stop | None = None


def _check_object(value: object) -> Any:
    """Check the type alone: `SamplingSettings` judges names and values, for the Python API and for clients."""
    if not isinstance(value, dict):
        raise PydanticCustomError("must_be", 'must be an object such as {"temperature": 0.5}')
    return value


SettingsObject = Annotated[Json, PlainValidator(_check_object, json_schema_input_type=Settings)]


class BoxFields(BaseModel):
    """A box, as parts of the image's width and height."""

    x_min: Unit
    y_min: Unit
    x_max: Unit
    y_max: Unit


class PointFields(BaseModel):
    """A point, as parts of the image's width and height."""

    x: Unit
    y: Unit


_Pair = Annotated[list[Unit], Field(min_length=2, max_length=2)]
_Four = Annotated[list[Unit], Field(min_length=4, max_length=4)]
SpatialRefs = Annotated[
    list[Annotated[_Pair | _Four | PointFields | BoxFields, Field(union_mode="left_to_right")]],
    Field(fail_fast=True, description="What the words are about: points, boxes, or objects as answers hold them."),
    must_be("a list of points [x, y] and boxes [x_min, y_min, x_max, y_max] from 0 to 1, or of such objects"),
]
Names = Annotated[
    Text | Annotated[list[InstanceOf[str]], Field(fail_fast=True, min_length=1, max_length=MAX_NAMES)],
    must_be(f"text, or a list of 1 to {MAX_NAMES} texts"),
]
_Positive = Annotated[int, Field(ge=1)]
TileForm = Annotated[
    Literal["auto"]
    | Annotated[str, Field(pattern="^[1-9][0-9]{0,8}x[1-9][0-9]{0,8}$")]
    | _Positive
    | Annotated[list[_Positive], Field(min_length=2, max_length=2)],
    must_be('"auto", the side of a tile in pixels, [rows, columns] or "2x2"'),
]
NotStreamed = Annotated[Literal[False], must_be("false or left out: the answer comes as a whole")]


_NO_ARGUMENTS: Final = ("image_url", "stream", "strict", "model", "adapter", "variant")


class SkillRequest(Body):
    image_url: Text | None = Field(
        None,
        description="A data URI in base64, or a URL of a host that the server allows.",
        examples=["data:image/jpeg;base64,..."],
    )
    stream: Flag = Field(False, description="Whether to send the answer as it comes.")
    settings: SettingsObject | None = None
    strict: Flag = Field(False, description="Whether an answer that a limit cut short is an error (422).")
    model: Text | None = Field(None, description="The model's name, or with an adapter's `MODEL:NAME`.")
    adapter: Text | None = Field(None, description="Name of the loaded adapter that answers; none unless given.")
    variant: Text | None = Field(None, description="The same in Moondream's words, which may stand in settings too.")

    @property
    def arguments(self) -> Json:
        """Arguments of the skill's method of `VisionModel`."""
        found = {name: value for name, value in self.given.items() if name not in _NO_ARGUMENTS}
        if "variant" in (self.settings or {}):
            found["settings"] = {name: value for name, value in found["settings"].items() if name != "variant"}
        return found

    @property
    def asked_adapter(self) -> str | None:
        """The name of the adapter that answers; raises 422 where several are given."""
        names = [one for one in (self.adapter, self.variant, (self.settings or {}).get("variant")) if one is not None]
        if any(name != names[0] for name in names):
            raise unusable(f"the request names several adapters, such as {shown(names[0])}: give one")
        return names[0] if names else None


class CaptionRequest(SkillRequest):
    """Describe an image."""

    length: Literal["short", "normal", "long"] = Field("normal", description="How much to say.", examples=["short"])


class QueryRequest(SkillRequest):
    """Answer a question, about an image or without one."""

    question: Text = Field(description="What to answer.", examples=["How many bananas are there?"])
    reasoning: Flag = Field(False, description="Whether the model writes down its reasoning first.")
    spatial_refs: SpatialRefs | None = None
    schema_: JsonSchema | None = Field(
        None,
        alias="schema",
        description="A JSON Schema that the answer keeps to; a keyword that could not be enforced is refused by name. "
        'Objects of the format "box" or "point" are drawn by the model itself.',
    )
    choices: Choices | None = Field(None, description="The texts to choose from.")
    regex: Text | None = Field(None, description="A pattern that the whole answer matches.")


class SearchRequest(SkillRequest):
    """What to find, and what to leave out of it."""

    object: Names = Field(
        description="What to find: a name, or a list of names.",
        examples=["banana", ["banana", "cup"]],
    )
    min_score: Unit = Field(0, description="Items with a lower score are left out.")
    overlap: Literal["keep", "best"] = Field(
        "keep", description="Whether of overlapping items of different names all stay, or the best score."
    )
    tile: TileForm | None = Field(
        None,
        description='Look in overlapping tiles as well: [rows, columns], "2x2", the side of one in pixels, or "auto".',
    )


class DetectRequest(SearchRequest):
    """Find every instance of an object: boxes."""

    stream: NotStreamed = False


class PointRequest(DetectRequest):
    """Point at every instance of an object."""

    spatial_refs: SpatialRefs | None = None


class SegmentRequest(SearchRequest):
    """Draw the outline of an object."""

    spatial_refs: SpatialRefs | None = None


FinishReason = Literal["stop", "length", "max_objects"]


class SkillResponse(BaseModel):
    """What is known about an answer beside it."""

    request_id: str
    metrics: Metrics | None
    finish_reason: FinishReason | None
    truncated: bool | None = Field(description="Whether a limit cut the answer short.")


class _Event(BaseModel):
    request_id: str | None = None
    metrics: Metrics | None = None
    finish_reason: FinishReason | None = None
    truncated: bool | None = None


def outcome_of(result: Mapping[str, Any]) -> Json:
    metrics, *rest = (getattr(result, name, None) for name in ("metrics", "finish_reason", "truncated"))
    return {"metrics": metrics and metrics.to_dict(), "finish_reason": rest[0], "truncated": rest[1]}


class Grounding(BaseModel):
    start_idx: Count
    end_idx: Count
    points: list[list[Unit]]


class Reasoning(BaseModel):
    text: str
    grounding: list[Grounding]


class CaptionResponse(SkillResponse):
    caption: str


class QueryResponse(SkillResponse):
    answer: Any = Field(description="Text; with `schema` the value.")
    text: str | None = Field(None, description="With `schema` only: the JSON of the answer.")
    scores: dict[str, Unit] | None = Field(None, description="With `choices` only: how probable each was.")
    reasoning: Reasoning | None = Field(None, description="With `reasoning` only.")


class Found(BaseModel):
    label: str
    score: Unit = Field(description="Confidence of the model.")


class FoundBox(BoxFields, Found):
    """A box around an instance."""


class FoundPoint(PointFields, Found):
    """A point on an instance."""


class FoundSegment(Found):
    path: str = Field(description="SVG, relative to the box.")
    bbox: BoxFields
    polygon: list[list[float]]


class DetectResponse(SkillResponse):
    objects: list[FoundBox]


class PointResponse(SkillResponse):
    points: list[FoundPoint]


class SegmentResponse(SkillResponse):
    segments: list[FoundSegment]
    path: str = Field(description="Of the first segment; empty where there is none.")
    bbox: BoxFields | None = Field(description="Of the first segment; null where there is none.")


class TextEvent(_Event):
    """A piece of text. The last event is completed, and says how the answer ended."""

    chunk: str
    completed: bool
    reasoning: Reasoning | None = None
    scores: dict[str, Unit] | None = None


class OutlineEvent(_Event):
    """The box, the path, and at the end the whole answer."""

    type: Literal["bbox", "path_delta", "final"]
    bbox: BoxFields | None = None
    chunk: str | None = Field(None, description="A piece of the path.")
    path: str | None = None
    completed: bool | None = None
    segments: list[FoundSegment] | None = None


SKILL_BODIES: Final[dict[Skill, tuple[type[SkillRequest], type[SkillResponse], type[BaseModel] | None]]] = {
    "caption": (CaptionRequest, CaptionResponse, TextEvent),
    "query": (QueryRequest, QueryResponse, TextEvent),
    "detect": (DetectRequest, DetectResponse, None),
    "point": (PointRequest, PointResponse, None),
    "segment": (SegmentRequest, SegmentResponse, OutlineEvent),
}
