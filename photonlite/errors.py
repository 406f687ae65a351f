"""The exception tree: every error a user can meet, caught by type.

```
PhotonliteError
├── InputError                  (also a ValueError) what was handed in cannot be used
│   ├── ImageError
│   │   ├── ImageNotFoundError  (also a FileNotFoundError)
│   │   ├── ImageDecodeError    not an image, truncated, empty
│   │   ├── ImageTooLargeError  over the limit of pixels, bytes or memory
│   │   ├── ImageTimeoutError   (also a TimeoutError) decoding takes more CPU time than its size allows
│   │   ├── ImageBusyError      too many others wait to be decoded
│   │   └── ImageShapeError     an array of the wrong shape, type or values
│   ├── PromptError             text that is empty or too long
│   ├── SettingsError           an unknown setting or a value out of range
│   ├── UnknownArgumentError    (also a TypeError) an argument that the method does not take
│   ├── GrammarError            a schema, pattern or list of choices that no answer can be held to
│   │   ├── SchemaError         a keyword or type that would not be enforced, or a malformed schema
│   │   ├── GrammarTooLargeError    over the limit of length, states, masks, choices or nesting
│   │   ├── GrammarTimeoutError (also a TimeoutError) not compiled within the limit
│   │   └── GrammarBusyError    too many others wait to be compiled
│   └── SpatialRefError         a reference that is no point or box inside the image
├── ModelError                  the checkpoint cannot be used
│   ├── ModelNotFoundError      no such folder, file or Hub id
│   ├── CheckpointError         a missing, unexpected, misshapen or unreadable tensor
│   ├── ConfigError             config.json lacks or contradicts something
│   ├── UnsupportedSkillError   the checkpoint was not trained for the skill
│   └── NumericalError          the network computed something that is no finite number
├── CapacityError               a request, or a configuration, that can never fit the context or the memory
├── EngineError                 a request ended before its answer was complete
│   ├── StepError               the device could not do a step that carried the request
│   ├── OutOfMemoryError        host or device memory ran out for the request; it may fit later
│   ├── GrammarWorkerError  the processes that compile grammars are killed, or do not start
│   ├── EngineDiedError         the engine has stopped, and no request can run any more
│   ├── TruncatedError          a limit cut the answer short, and strict=True was asked for
│   ├── RequestCancelledError   the caller gave it up
│   └── DeadlineError           (also a TimeoutError) its deadline passed first
└── MissingDependencyError      (also an ImportError) an optional package is not installed
```

Every message says what was wrong, which limit it met, and what to do about it.
"""


class PhotonliteError(Exception):
    """Base class of every error that photonlite raises on purpose."""


class InputError(PhotonliteError, ValueError):
    """What was handed in cannot be used."""


class ImageError(InputError):
    """The image cannot be used."""


class ImageNotFoundError(ImageError, FileNotFoundError):
    """The path leads to no file."""


class ImageDecodeError(ImageError):
    """The bytes are empty, truncated or not an image."""


class ImageTooLargeError(ImageError):
    """The image is over the limit of pixels, bytes or memory."""


class ImageTimeoutError(ImageError, TimeoutError):
    """Decoding the image takes more CPU time than an image of its size may take."""


class ImageBusyError(ImageError):
    """So many images wait to be decoded that one more is refused."""


class ImageShapeError(ImageError):
    """The array has a shape, type or values that no image has."""


class PromptError(InputError):
    """The text is empty or too long."""


class SettingsError(InputError):
    """A setting is unknown or out of range."""


class UnknownArgumentError(InputError, TypeError):
    """A method was given an argument that it does not take."""


class GrammarError(InputError):
    """A schema, a pattern or a list of choices cannot be turned into a grammar."""


class SchemaError(GrammarError):
    """A JSON Schema is malformed, or holds something that an answer would not be held to.

    Args:
        message: What is wrong, and what to do.
        keyword: The keyword of JSON Schema that it is about; empty where it is about none.
        where: JSON pointer (RFC 6901) to the schema that holds the keyword; empty for the outermost one.

    Attributes:
        keyword: As given.
        where: As given.
    """

    def __init__(self, message: str, keyword: str = "", where: str = "") -> None:
        super().__init__(message)
        self.keyword = keyword
        self.where = where


class GrammarTooLargeError(GrammarError):
    """A grammar is over a limit: of its length, its states, its masks, its choices or its nesting."""


class GrammarTimeoutError(GrammarError, TimeoutError):
    """A grammar was not compiled within the time it may take."""


class GrammarBusyError(GrammarError):
    """So many grammars wait to be compiled that one more is refused."""


class SpatialRefError(InputError):
    """A spatial reference is neither a point nor a box inside the image."""


class ModelError(PhotonliteError):
    """The checkpoint cannot be used."""


class ModelNotFoundError(ModelError):
    """No folder, file or Hub repository of that name is at hand."""


class CheckpointError(ModelError):
    """A tensor is missing, unexpected, misshapen or unreadable."""


class ConfigError(ModelError):
    """The model's configuration lacks or contradicts something."""


class UnsupportedSkillError(ModelError):
    """The checkpoint was not trained for the skill."""


class NumericalError(ModelError):
    """The network computed something that is no finite number."""


class CapacityError(PhotonliteError):
    """The request can never fit the model's context or the cache, or the configuration cannot fit the memory."""


class EngineError(PhotonliteError):
    """The request ended before its answer was complete."""


class StepError(EngineError):
    """The device could not do a step that carried the request."""


class OutOfMemoryError(EngineError):
    """Host or device memory ran out for the request; the engine goes on, and it may fit later."""


class GrammarWorkerError(EngineError):
    """The processes that compile grammars were killed from outside, or cannot be started: no fault of the grammar."""


class EngineDiedError(EngineError):
    """The engine has stopped: requests that were open have failed, and later ones are refused."""


class TruncatedError(EngineError):
    """A limit (max_tokens, max_objects, the context) cut the answer short, and it was asked for with strict=True."""


class RequestCancelledError(EngineError):
    """The caller gave the request up."""


class DeadlineError(EngineError, TimeoutError):
    """The request's deadline passed before its answer was complete."""


class MissingDependencyError(PhotonliteError, ImportError):
    """An optional package is needed and not installed."""
