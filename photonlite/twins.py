"""The async twins of :class:`photonlite.api.VisionModel`'s methods: same arguments, results and errors, awaited."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Unpack

from photonlite.batching import Batch, Errors
from photonlite.options import Options
from photonlite.results import Answer, Caption, Detections, Points, Segments
from photonlite.session import Session
from photonlite.skills.base import SpatialRefs
from photonlite.tasks import EncodedImage, ImageInput, Settings, Tasks


class AsyncTwins:
    """Awaits what the other half of the class waits for. Cancelling the task that awaits cancels the request.

    Images are read on other threads: an array or a PIL image must not change until the answer is there.
    """

    _session: Session
    _tasks: Tasks

    async def adetect(
        self, image: ImageInput, object: str, settings: Settings | None = None, **options: Unpack[Options]
    ) -> Detections:
        """Find every instance of an object; see `detect`."""
        return await self._session.arun(self._tasks.detect(image, object, settings), options)

    async def apoint(
        self,
        image: ImageInput,
        object: str,
        settings: Settings | None = None,
        *,
        spatial_refs: SpatialRefs | None = None,
        **options: Unpack[Options],
    ) -> Points:
        """Point at every instance of an object; see `point`."""
        return await self._session.arun(self._tasks.point(image, object, settings, spatial_refs=spatial_refs), options)

    async def asegment(
        self,
        image: ImageInput,
        object: str,
        *,
        spatial_refs: SpatialRefs | None = None,
        settings: Settings | None = None,
        **options: Unpack[Options],
    ) -> Segments:
        """Draw the outline of an object; see `segment`."""
        task = self._tasks.segment(image, object, spatial_refs=spatial_refs, settings=settings)
        return await self._session.arun(task, options)

    async def acaption(
        self,
        image: ImageInput,
        length: str = "normal",
        stream: bool = False,
        settings: Settings | None = None,
        **options: Unpack[Options],
    ) -> Caption:
        """Describe an image; see `caption`. A stream is an asynchronous iterator."""
        return await self._session.arun(self._tasks.caption(image, length, stream, settings), options)

    async def aquery(
        self,
        image: ImageInput | None = None,
        question: str | None = None,
        stream: bool = False,
        settings: Settings | None = None,
        *,
        reasoning: bool = False,
        spatial_refs: SpatialRefs | None = None,
        schema: Any = None,
        choices: Iterable[str] | None = None,
        regex: str | re.Pattern[str] | None = None,
        **options: Unpack[Options],
    ) -> Answer:
        """Answer a question; see `query`. A stream is an asynchronous iterator."""
        task = self._tasks.query(
            image,
            question,
            stream,
            settings,
            reasoning=reasoning,
            spatial_refs=spatial_refs,
            schema=schema,
            choices=choices,
            regex=regex,
        )
        return await self._session.arun(task, options)

    async def aencode_image(self, image: ImageInput, **options: Unpack[Options]) -> EncodedImage:
        """Read an image before there is a question; see `encode_image`."""
        if isinstance(image, EncodedImage):
            return image
        return await self._session.aencode(self._tasks.encode(image), options)

    async def abatch(
        self, tasks: Iterable[Mapping[str, Any]], *, progress: bool = False, errors: Errors = "return"
    ) -> list[Any]:
        """Ask for many things at once; see `batch`."""
        with Batch(self._session, self._tasks, tasks, progress=progress, errors=errors) as batch:
            while batch.fill():
                await batch.await_oldest()
                batch.settle()
        return batch.results
