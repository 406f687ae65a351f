"""The exception tree: every error a user can meet, caught by type.

```
PhotonliteError
├── InputError                    also a ValueError
│   ├── ImageError ────────────── ImageNotFoundError (a FileNotFoundError), ImageDecodeError, ImageTooLargeError,
│   │                             ImageTimeoutError (a TimeoutError), ImageBusyError, ImageShapeError,
│   │                             ImageUrlError, ImageFetchError
│   ├── GrammarError ──────────── SchemaError, GrammarTooLargeError, GrammarTimeoutError (a TimeoutError),
│   │                             GrammarBusyError
│   └── PromptError, SettingsError (TileError), UnknownArgumentError (a TypeError), SpatialRefError,
│       UnknownAdapterError, TuningError
├── ModelError ────────────────── ModelNotFoundError, CheckpointError, ConfigError, UnsupportedSkillError,
│                                 NumericalError, AdapterError
├── EngineError ───────────────── StepError, OutOfMemoryError, GrammarWorkerError, ImageWorkerError, EngineDiedError,
│                                 TruncatedError, RequestCancelledError, DeadlineError (a TimeoutError)
└── CapacityError, MissingDependencyError (an ImportError)
```

Every message says what was wrong, which limit it met, and what to do about it.
"""


class PhotonliteError(Exception):
    """Base class of every error that photonlite raises on purpose."""


class InputError(PhotonliteError, ValueError):
    """An argument cannot be used."""


class ImageError(InputError):
    """The image cannot be used."""


class ImageNotFoundError(ImageError, FileNotFoundError):
    """The path leads to no file."""


class ImageDecodeError(ImageError):
    """The bytes are empty, truncated or not an image."""


class ImageTooLargeError(ImageError):
    """The image is over the limit of pixels, bytes or memory."""


class ImageTimeoutError(ImageError, TimeoutError):
    """Decoding took more CPU time than an image of this size may take."""


class ImageBusyError(ImageError):
    """Too many images wait to be decoded."""


class ImageShapeError(ImageError):
    """The array has the wrong shape, type or values for an image."""


class ImageUrlError(ImageError):
    """Images are not fetched from this URL: URLs are not allowed, or not this kind, or its host is not public."""


class ImageFetchError(ImageError):
    """The image could not be fetched from its URL."""


class PromptError(InputError):
    """The text is empty or too long, or a list of names is empty, too long or holds a name twice."""


class SettingsError(InputError):
    """A setting is unknown or out of range."""


class TileError(SettingsError):
    """Tiles do not suit the image: they are larger than it, smaller than a pixel, or too many."""


class UnknownArgumentError(InputError, TypeError):
    """The method does not take this argument."""


class GrammarError(InputError):
    """A schema, pattern or list of choices cannot be used."""


class SchemaError(GrammarError):
    """A JSON Schema is malformed, or has a keyword that would not be enforced.

    Attributes:
        keyword: The keyword of JSON Schema that it is about; empty where it is about none.
        where: JSON pointer (RFC 6901) to the schema that holds the keyword; empty for the outermost one.
    """

    def __init__(self, message: str, keyword: str = "", where: str = "") -> None:
        super().__init__(message)
        self.keyword = keyword
        self.where = where


class GrammarTooLargeError(GrammarError):
    """A grammar is over the limit of length, states, masks, choices or nesting."""


class GrammarTimeoutError(GrammarError, TimeoutError):
    """A grammar was not compiled within the limit."""


class GrammarBusyError(GrammarError):
    """Too many grammars wait to be compiled."""


class SpatialRefError(InputError):
    """A spatial reference is neither a point nor a box inside the image."""


class UnknownAdapterError(InputError):
    """No adapter of this name is loaded."""


class TuningError(InputError):
    """A tuning file or what it is made from cannot be used: damaged, of another card or model, or impossible."""


class ModelError(PhotonliteError):
    """The checkpoint cannot be used."""


class ModelNotFoundError(ModelError):
    """There is no such folder, file or Hub repository."""


class CheckpointError(ModelError):
    """A tensor is missing, unexpected, misshapen or unreadable."""


class ConfigError(ModelError):
    """The model's configuration lacks or contradicts something."""


class UnsupportedSkillError(ModelError):
    """The checkpoint was not trained for the skill."""


class NumericalError(ModelError):
    """The network computed NaN or infinity."""


class AdapterError(ModelError):
    """The adapter cannot be used: its files, what they ask for, its base model, or its name."""


class CapacityError(PhotonliteError):
    """The request can never fit the model's context or the cache, or the configuration cannot fit the memory."""


class EngineError(PhotonliteError):
    """The request ended before its answer was complete."""


class StepError(EngineError):
    """A step that carried the request failed on the device."""


class OutOfMemoryError(EngineError):
    """Host or device memory ran out for the request; the engine continues, and it may fit later."""


class GrammarWorkerError(EngineError):
    """The processes that compile grammars were killed from outside, or do not start: not the grammar's fault."""


class ImageWorkerError(EngineError):
    """The processes that decode images were killed from outside, or do not start: not the image's fault."""


class EngineDiedError(EngineError):
    """The engine has stopped: open requests have failed, and later ones are refused."""


class TruncatedError(EngineError):
    """A limit (max_tokens, max_objects, the context) cut the answer short, and the request was strict."""


class RequestCancelledError(EngineError):
    """The caller cancelled the request."""


class DeadlineError(EngineError, TimeoutError):
    """The request's deadline passed before its answer was complete."""


class MissingDependencyError(PhotonliteError, ImportError):
    """An optional package is needed and not installed."""
