"""Bodies of `/v1/adapters`."""

from typing import Literal, Self

from pydantic import BaseModel, Field

from photonlite.api.adapters import Adapter
from photonlite.server.bodies.base import Body, Count, Text


class AdapterRequest(Body):
    """An adapter to load."""

    adapter: Text = Field(description="A folder, a .safetensors file or a Hub id, as the server sees and allows it.")
    name: Text | None = Field(None, description="What requests call it; the name of the folder unless given.")


class AdapterEntry(BaseModel):
    """An adapter that is loaded."""

    name: str = Field(description="What requests call it.")
    object: Literal["adapter"] = "adapter"
    rank: Count = Field(description="Its largest rank.")
    bytes: Count = Field(description="Host memory that its weights take.")
    key: str = Field(description="Hash of its content.")

    @classmethod
    def of(cls, adapter: Adapter) -> Self:
        return cls(name=adapter.name, rank=adapter.rank, bytes=adapter.nbytes, key=adapter.key)


class AdapterList(BaseModel):
    """The adapters that are loaded."""

    object: Literal["list"] = "list"
    data: list[AdapterEntry]
