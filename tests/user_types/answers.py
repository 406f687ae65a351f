"""Calls as users write them: `assert_type` where they are right, and the code of the error where they are wrong."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, assert_type

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

import photonlite
from photonlite import Answer, Caption, Detections
from photonlite.api import RequestSettings
from photonlite.results import BoxItem, PointItem, SegmentItem


class Shelf(BaseModel):
    fruit: str


@dataclass
class Cup:
    color: str


class Size(Enum):
    SMALL = "small"


def entries(model: photonlite.VisionModel) -> None:
    found = model.detect("a.png", "mug")
    assert_type(found["objects"], list[BoxItem])
    assert_type(found.objects[0].x_min, float)
    assert_type(found.objects[1:], list[BoxItem])
    assert_type(found.filter(min_score=0.5) + found, Detections)
    assert_type(found.boxes, NDArray[np.float64])
    assert_type(model.point("a.png", "mug")["points"], list[PointItem])
    assert_type(model.segment("a.png", "mug").segments[0], SegmentItem)
    assert_type(model.segment("a.png", "mug").segments[0].bbox.y_max, float)
    plain: dict[str, Any] = found
    box: dict[str, Any] = found.objects[0]
    print(found.objects[0].xmin)  # error: attr-defined
    print(found.object)  # error: attr-defined
    found.filter(minscore=0.5)  # error: call-arg
    print(plain, box)


def answers(model: photonlite.VisionModel) -> None:
    assert_type(model.query("a.png", "what?"), Answer[str])
    assert_type(model.query("a.png", "what?")["answer"], str)
    assert_type(model.query("a.png", "what?", schema=Shelf).answer, Shelf)
    assert_type(model.query("a.png", "what?", schema=Shelf)["answer"], Shelf)
    assert_type(model.query("a.png", "what?", schema=Cup).value, Cup)
    assert_type(model.query("a.png", "what?", schema=Size).answer, Size)
    assert_type(model.query("a.png", "what?", schema=list[int]).answer, list[int])
    assert_type(model.query("a.png", "what?", schema=Literal["a", "b"]).answer, Literal["a", "b"])
    assert_type(model.query("a.png", "what?", schema=int | None).answer, int | None)
    assert_type(model.query("a.png", "what?", schema={"type": "object"}).answer, Any)
    assert_type(model.query("a.png", "what?", choices=["yes", "no"]).answer, str)
    assert_type(model.query("a.png", "what?", schema=Shelf).text, str)
    print(model.query("a.png", "what?", schema=Shelf).answer.fruits)  # error: attr-defined


def streams(model: photonlite.VisionModel, stream: bool) -> None:
    assert_type(model.query("a.png", "what?", stream=True).answer, Iterator[str])
    assert_type(model.query("a.png", "what?", stream=True).value, str)
    assert_type(model.query("a.png", "what?", True)["answer"], Iterator[str])
    assert_type(model.query("a.png", "what?", stream=True, schema=Shelf).answer, Iterator[str])
    assert_type(model.query("a.png", "what?", stream=True, schema=Shelf).value, Shelf)
    assert_type(model.query("a.png", "what?", stream=stream).answer, Any)
    assert_type(model.caption("a.png"), Caption[str])
    assert_type(model.caption("a.png", stream=True)["caption"], Iterator[str])
    assert_type(model.caption("a.png", "short", stream=stream).caption, Any)


async def twins(model: photonlite.VisionModel) -> None:
    assert_type((await model.adetect("a.png", "mug")).objects, list[BoxItem])
    assert_type((await model.aquery("a.png", "what?")).answer, str)
    assert_type((await model.aquery("a.png", "what?", schema=Shelf))["answer"], Shelf)
    assert_type((await model.aquery("a.png", "what?", schema=Shelf, stream=True)).answer, AsyncIterator[str])
    assert_type(await (await model.aquery("a.png", "what?", schema=Shelf, stream=True)).avalue(), Shelf)
    assert_type((await model.acaption("a.png")).caption, str)
    assert_type((await model.acaption("a.png", stream=True))["caption"], AsyncIterator[str])
    await model.aquery("a.png", "what?", deadline=1.0)  # error: call-overload
    await model.adetect("a.png", "mug", settings={"max_object": 1})  # error: arg-type


def names(model: photonlite.VisionModel) -> None:
    settings: RequestSettings = {"temperature": 0.5, "max_tokens": 9}
    model.caption("a.png", settings=settings, deadline_s=0.5, strict=True)
    model.detect("a.png", "mug", settings={"temprature": 0.5})  # error: arg-type
    model.detect("a.png", "mug", settings={"temperature": "high"})  # error: arg-type
    model.detect("a.png", "mug", deadline=0.5)  # error: call-arg
    model.query("a.png", "what?", settings={"max_token": 9})  # error: call-overload
    model.caption("a.png", strickt=True)  # error: call-overload
    photonlite.load(engine={"max_batch": 4})
    photonlite.load(engine={"max_batches": 4})  # error: arg-type
    photonlite.load(engine=photonlite.EngineConfig(max_batches=4))  # error: call-arg


def loops(model: photonlite.VisionModel) -> None:
    loop = photonlite.RealtimeLoop(model, task="detect", object=["mug", "key"], min_score=0.5, track=True)
    loop.change(object="cup", tile=(2, 2), settings={"max_objects": 3})
    photonlite.RealtimeLoop(model, task="detekt", object="mug")  # error: arg-type
    photonlite.RealtimeLoop(model, objekt="mug")  # error: call-arg
    photonlite.RealtimeLoop(model, object="mug", settings={"max_object": 3})  # error: arg-type
    loop.change(min_score="high")  # error: arg-type
    loop.change(deadline=33)  # error: call-arg
