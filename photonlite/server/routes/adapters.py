"""`/v1/adapters`: which are loaded; with a key of its own, loading and unloading at run time."""

import asyncio
from contextlib import suppress
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from photonlite.models.shards import ADAPTER_CONFIG_NAME, ADAPTER_NAME
from photonlite.server.bodies.adapters import AdapterEntry, AdapterList, AdapterRequest
from photonlite.server.bodies.base import validate
from photonlite.server.bodies.reading import read_body, read_json_object
from photonlite.server.errors import HttpError
from photonlite.server.ingress import Ingress
from photonlite.server.limits.callers import check_admin
from photonlite.server.transport.logs import log


def routes(ingress: Ingress) -> list[BaseRoute]:
    async def listed(request: Request) -> Response:
        async with await ingress.admit(request):
            entries = [AdapterEntry.of(one) for one in ingress.model.adapters()]
            return JSONResponse(AdapterList(data=entries).model_dump())

    async def load(request: Request) -> Response:
        async with await ingress.admit(request) as permit:
            body = await read_body(request, ingress.config, permit)
            check_admin(request, ingress.config)
            with ingress.parsing(request, body, permit):
                asked = validate(AdapterRequest, read_json_object(body))
            # On a thread: files are read, perhaps downloaded.
            source = await asyncio.to_thread(allowed_source, asked.adapter, ingress.config.adapter_root)
            loaded = await asyncio.to_thread(ingress.model.load_adapter, source, name=asked.name)
            log("adapter loaded", id=permit.id, adapter=loaded.name, rank=loaded.rank, bytes=loaded.nbytes)
            return JSONResponse(AdapterEntry.of(loaded).model_dump())

    async def unload(request: Request) -> Response:
        async with await ingress.admit(request) as permit:
            check_admin(request, ingress.config)
            name = request.path_params["adapter"]
            ingress.model.unload_adapter(name)
            log("adapter unloaded", id=permit.id, adapter=name)
            return Response(status_code=204)

    return [
        Route("/v1/adapters", listed, methods=["GET"]),
        Route("/v1/adapters", load, methods=["POST"]),
        Route("/v1/adapters/{adapter}", unload, methods=["DELETE"]),
    ]


def allowed_source(given: str, root: str | None) -> str:
    """Return the path of an adapter inside the root; raises 403 unless all its files lie there, links resolved."""
    if root is None:
        return given
    with suppress(OSError, ValueError, RuntimeError):  # a name that is too long, a NUL, links in a circle
        folder = Path(root).resolve()
        path = folder / given
        beside = path if path.is_dir() else path.parent
        files = (path, beside / ADAPTER_NAME, beside / ADAPTER_CONFIG_NAME)
        if all(file.resolve().is_relative_to(folder) for file in files):
            return str(path.resolve())
    message = "this server loads adapters inside the folder of --adapter-root only: give a path in it"
    raise HttpError(403, message, code="adapter_refused")
