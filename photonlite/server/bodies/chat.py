"""Bodies of `/v1/chat/completions`: parameters of OpenAI and vLLM."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self, cast

from pydantic import (
    BaseModel,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PrivateAttr,
    SkipValidation,
    ValidationInfo,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from photonlite.errors import ImageUrlError, PromptError
from photonlite.request import Turn
from photonlite.results import Metrics
from photonlite.server.bodies.base import (
    Body,
    Choices,
    Count,
    Flag,
    Json,
    JsonSchema,
    Text,
    must_be,
    shown,
    unusable,
)
from photonlite.server.bodies.skills import RepetitionPenalty, Seed, Stop, Temperature, TopP
from photonlite.server.errors import HttpError, to_http
from photonlite.skills.chat import DETAILS, MAX_TURNS, Conversation, Message, read_messages

_ALL_TOKENS: Final = (0, -1)  # values of top_k that vLLM takes for no limit
_SAMPLING: Final = ("temperature", "top_p", "top_k", "repetition_penalty", "seed", "max_tokens", "stop")
_SETTINGS: Final = {name: name for name in _SAMPLING} | {"max_completion_tokens": "max_tokens"}


class Only:
    """Marks a parameter that is taken with the values that change nothing, and refused with any other."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> Json:
        return {
            "enum": list(self.values),
            "description": "Taken with a value that changes nothing, refused with any other.",
        }

    def _check(self, value: object, info: ValidationInfo) -> object:
        # True equals 1 in Python, but not in JSON.
        if any(value == known and isinstance(value, bool) == isinstance(known, bool) for known in self.values):
            return value
        values = " or ".join(map(repr, self.values))
        raise unusable(f"the field {info.field_name!r} is {shown(value)}: only {values} is supported, leave it out")


Ignored = Annotated[Any, Field(description="Ignored.")]
Limit = SkipValidation[Annotated[int, Field(ge=1)]]


class ImageUrl(Body):
    """Where an image is. Images are always read in full detail."""

    url: Text = Field(description="A data URI with base64, or a URL of a host that the server allows.")
    detail: Annotated[Any, Only(*DETAILS)] = None


class ChatPart(Body):
    """A text, or, in a message of the user's, an image."""

    type: Literal["text", "image_url"]
    text: Text | None = None
    image_url: ImageUrl | None = None
    cache_control: Ignored = None


class ChatMessage(Body):
    """One turn; `read_messages` checks it. The last one must be the user's, and hold text."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[ChatPart] | None = None
    tool_calls: Annotated[Any, Only([])] = None
    annotations: Ignored = None
    parsed: Ignored = None
    reasoning: Ignored = None
    reasoning_content: Ignored = None
    cache_control: Ignored = None


class NamedSchema(Body):
    """A schema, which is always kept to."""

    schema_: Annotated[Json, must_be("a JSON Schema as an object")] = Field(alias="schema")
    name: Ignored = None
    description: Ignored = None
    strict: Ignored = None


class ResponseFormat(Body):
    """What the answer has to be, in OpenAI's words."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = Field(None, description="With the type `json_schema` only.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise PydanticCustomError("must_be", "must have 'json_schema' with the type 'json_schema', and only then")
        return self

    @property
    def arguments(self) -> Json:
        """Arguments of `VisionModel.query`."""
        if self.json_schema is not None:
            return {"schema": self.json_schema.schema_}
        return {"schema": dict} if self.type == "json_object" else {}


class StructuredOutputs(Body):
    """What the answer has to be, in vLLM's words; one of the fields. Grammars in other notations are not supported."""

    json_: JsonSchema | None = Field(None, alias="json")
    json_object: Flag = Field(False, description="Whether it is any JSON object.")
    regex: Text | None = Field(None, description="A pattern.")
    choice: Choices | None = None

    @property
    def arguments(self) -> Json:
        """Arguments of `VisionModel.query`."""
        given = {name: value for name, value in self.given.items() if value is not False}
        if len(given) > 1:
            raise unusable(f"'structured_outputs' has {' and '.join(map(repr, given))}: give one of them")
        names = {"json": "schema", "json_object": "schema", "regex": "regex", "choice": "choices"}
        return {names[name]: dict if name == "json_object" else value for name, value in given.items()}


class StreamOptions(Body):
    """With `stream` only."""

    include_usage: Flag = Field(False, description="Whether the last chunk counts tokens.")
    include_obfuscation: Ignored = None


class ChatCompletionRequest(Body):
    """A conversation, about several images where the model reads several. Unknown parameters are refused."""

    messages: SkipValidation[Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_TURNS)]]
    model: Text | None = Field(None, description="The model's name; the one that is served unless given.")
    stream: Flag = Field(False, description="Whether to send the answer as it comes.")
    stream_options: StreamOptions | None = None
    max_completion_tokens: Limit | None = Field(None, description="Tokens of the answer at most.")
    max_tokens: Limit | None = Field(None, description="An older name of the same; give one of them.")
    temperature: SkipValidation[Temperature] = 0
    top_p: SkipValidation[TopP] = 1
    top_k: SkipValidation[Annotated[int, Field(ge=-1)]] | None = Field(
        None, description="As vLLM has it: so many of the likeliest tokens; 0 and -1 mean all."
    )
    repetition_penalty: SkipValidation[RepetitionPenalty] = 1
    seed: SkipValidation[Seed] | None = Field(None, description="Makes samples repeatable.")
    stop: SkipValidation[Stop] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    n: Annotated[Any, Only(1)] = None
    frequency_penalty: Annotated[Any, Only(0)] = None
    presence_penalty: Annotated[Any, Only(0)] = None
    logit_bias: Annotated[Any, Only({})] = None
    logprobs: Annotated[Any, Only(False)] = None
    top_logprobs: Annotated[Any, Only(0)] = None
    modalities: Annotated[Any, Only(["text"])] = None
    reasoning: Annotated[Any, Only(False)] = None
    reasoning_effort: Annotated[Any, Only("none")] = None
    tools: Annotated[Any, Only([])] = None
    tool_choice: Annotated[Any, Only("none", "auto")] = None
    functions: Annotated[Any, Only([])] = None
    function_call: Annotated[Any, Only("none", "auto")] = None
    user: Ignored = None
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    parallel_tool_calls: Ignored = None

    _spoken: Conversation = PrivateAttr()

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            self._spoken = read_messages(cast(list[Message], self.messages), urls_only=True)
        except ImageUrlError as error:
            raise HttpError(400, str(error), code="invalid_image_url") from None
        except PromptError as error:
            raise to_http(error) from None
        if self.stream_options is not None and not self.stream:
            raise unusable("'stream_options' go with 'stream': true only")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise unusable("'max_completion_tokens' and 'max_tokens' mean the same: give one of them")
        return self

    @property
    def conversation(self) -> list[Json]:
        """The messages for `VisionModel.chat`, with the place in `images` of each image."""
        places, images = {image: place for place, image in enumerate(self.images)}, iter(self._spoken.images)

        def written(part: str | None) -> Json:
            return {"type": "image", "image": places[next(images)]} if part is None else {"type": "text", "text": part}

        return [{"role": turn.role, "content": [*map(written, turn.parts)]} for turn in self.turns]

    @property
    def turns(self) -> tuple[Turn, ...]:
        return self._spoken.turns

    @property
    def images(self) -> list[str]:
        """Each image once: clients send it again with every turn."""
        return list(dict.fromkeys(self._spoken.images))

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def arguments(self) -> Json:
        """Arguments of `VisionModel.chat`."""
        settings = {_SETTINGS[name]: value for name, value in self.given.items() if name in _SETTINGS}
        if type(settings.get("top_k")) is int and settings["top_k"] in _ALL_TOKENS:
            del settings["top_k"]
        formats = [form.arguments for form in (self.response_format, self.structured_outputs) if form is not None]
        if all(formats) and len(formats) > 1:
            raise unusable("'response_format' and 'structured_outputs' both constrain the answer: give one of them")
        return {"messages": self.conversation, "settings": settings} | next(filter(None, formats), {})


class Usage(BaseModel):
    prompt_tokens: Count = Field(description="Those of the image among them.")
    completion_tokens: Count
    total_tokens: Count

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> "Usage":
        metrics: Metrics | None = getattr(result, "metrics", None)
        prompt, output = (metrics.prompt_tokens, metrics.output_tokens) if metrics else (0, 0)
        return cls(prompt_tokens=prompt, completion_tokens=output, total_tokens=prompt + output)


class ChatAnswer(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    index: Literal[0] = 0
    message: ChatAnswer
    logprobs: None = None
    finish_reason: Literal["stop", "length"]


class ChunkChoice(BaseModel):
    index: Literal[0] = 0
    delta: dict[str, str] = Field(description="What it adds to the message: `role` or `content`.")
    logprobs: None = None
    finish_reason: Literal["stop", "length"] | None


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: Count = Field(description="Seconds since 1970.")
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatCompletionChunk(BaseModel):
    """A piece of a streamed answer. With `include_usage` the last one has no choices, but usage."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: Count = Field(description="Seconds since 1970.")
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None


class ModelEntry(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: Count
    owned_by: str = "photonlite"


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelEntry]
