"""An image in the forms in which clients send it, and a server around a fake model."""

import base64
import io
from typing import Any

from PIL import Image
from starlette.applications import Starlette

from photonlite.server.app import create_app
from photonlite.server.config import ServerConfig
from tests.server.fake import FakeModel


def encoded(size: tuple[int, int] = (8, 6), kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, "navy").save(buffer, kind)
    return buffer.getvalue()


PNG = encoded()
DATA_URI = "data:image/png;base64," + base64.b64encode(PNG).decode()


def server(fake: FakeModel | None = None, **config: Any) -> Starlette:
    return create_app(fake or FakeModel(), ServerConfig(**config))
