"""Conversions from and to messages of ROS 2: images, detections in pixels, points in pixels.

```python
image = image_from_ros(message)                              # sensor_msgs/Image or CompressedImage
found = model.detect(image, "mug")
publisher.publish(detections_to_ros(found, message.header))  # vision_msgs/Detection2DArray
```

Messages are read by their fields, whatever their class. Those that are made are ROS's own where its Python packages can
be imported, else plain objects with the same fields; `messages` names other classes.
"""

import importlib
import math
import re
from array import array
from collections.abc import Iterable
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from photonlite.errors import ImageShapeError, InputError
from photonlite.results import Detections, Points

_HOMES: Final = {
    "Image": "sensor_msgs",
    "Detection2DArray": "vision_msgs",
    "Detection2D": "vision_msgs",
    "ObjectHypothesisWithPose": "vision_msgs",
    "ObjectHypothesis": "vision_msgs",
    "BoundingBox2D": "vision_msgs",
    "Pose2D": "vision_msgs",
    "Point2D": "vision_msgs",
    "PoseWithCovariance": "geometry_msgs",
    "Pose": "geometry_msgs",
    "Point": "geometry_msgs",
    "PointStamped": "geometry_msgs",
    "Quaternion": "geometry_msgs",
}
"""The classes that `messages` has to have, and the packages of ROS that define them."""

_BYTES: Final = {
    "rgb8": 3,
    "bgr8": 3,
    "8UC3": 3,
    "rgba8": 4,
    "bgra8": 4,
    "8UC4": 4,
    "mono8": 1,
    "8UC1": 1,
    "mono16": 2,
    "16UC1": 2,
    "yuv422": 2,
    "uyvy": 2,
    "yuv422_yuy2": 2,
    "yuyv": 2,
}
_CHANNELS: Final = {"rgb8": (0, 1, 2), "rgba8": (0, 1, 2), "mono8": (0, 0, 0), "8UC1": (0, 0, 0)}  # others are BGR


def image_from_ros(message: Any) -> Image.Image | bytes:
    """Return a `sensor_msgs/Image` as an RGB image, or the file in a `CompressedImage`: every method takes both.

    Alpha is dropped; of 16 bits the upper eight are kept.

    Raises:
        ImageShapeError: The encoding is not known, or the data do not fit width, height and step.
    """
    if not hasattr(message, "encoding"):
        return bytes(message.data)
    width, height, step, kind = int(message.width), int(message.height), int(message.step), message.encoding
    if kind not in _BYTES:
        raise ImageShapeError(f"the encoding {kind!r:.40} is not known: convert to one of {', '.join(_BYTES)}")
    data, row = _bytes_of(message.data), width * _BYTES[kind]
    if not (width > 0 and height > 0 and step >= row and len(data) >= step * (height - 1) + row):
        raise ImageShapeError(
            f"{len(data)} bytes do not hold {width} x {height} pixels of {kind} in rows of {step} bytes"
        )
    padded = np.zeros(step * height, np.uint8)  # the last row may lack its padding
    padded[: len(data)] = data[: step * height]
    pixels = padded.reshape(height, step)[:, :row].reshape(height, width, _BYTES[kind])
    if kind in ("mono16", "16UC1"):
        upper = pixels[..., 0 if message.is_bigendian else 1]
        return Image.fromarray(np.repeat(upper[..., None], 3, axis=2))
    if kind in ("yuv422", "uyvy", "yuv422_yuy2", "yuyv"):
        return Image.fromarray(_rgb_of_yuv(pixels, light=1 if kind in ("yuv422", "uyvy") else 0))
    return Image.fromarray(np.ascontiguousarray(pixels[..., _CHANNELS.get(kind, (2, 1, 0))]))


def image_to_ros(image: Image.Image, header: Any, *, messages: Any = None) -> Any:
    """Return an image, such as a drawn one, as `sensor_msgs/Image` of the encoding rgb8."""
    pixels = np.array(image.convert("RGB"))
    height, width = pixels.shape[:2]
    made = (messages or ros_messages()).Image
    # ROS's own class checks an array of the standard library quickly, and takes none of NumPy's.
    own = hasattr(made, "get_fields_and_field_types")
    data = array("B", pixels.tobytes()) if own else pixels.reshape(-1)
    return made(header=header, height=height, width=width, encoding="rgb8", is_bigendian=0, step=3 * width, data=data)


def detections_to_ros(result: Detections, header: Any, *, messages: Any = None) -> Any:
    """Return boxes as a `vision_msgs/Detection2DArray` in pixels: centre and size, label, score, and id over frames.

    Args:
        result: Of `detect`; `result.to_pixels(width, height)` where the image's size is not known.
        header: Of the image; it goes into the array and into every detection.
        messages: A namespace with the classes that `vision_msgs.msg` and `geometry_msgs.msg` define.

    Raises:
        InputError: The image's size is not known.
    """
    make = messages or ros_messages()
    detections = []
    for item in result.to_pixels(*result.size()).objects:
        centre = make.Point2D(x=(item.x_min + item.x_max) / 2, y=(item.y_min + item.y_max) / 2)
        upright = make.Quaternion(x=0.0, y=0.0, z=0.0, w=1.0)
        pose = make.Pose(position=make.Point(x=0.0, y=0.0, z=0.0), orientation=upright)
        hypothesis = make.ObjectHypothesis(class_id=str(item.get("label", "")), score=float(item.get("score", 1.0)))
        known = make.ObjectHypothesisWithPose(
            hypothesis=hypothesis, pose=make.PoseWithCovariance(pose=pose, covariance=np.zeros(36))
        )
        box = make.BoundingBox2D(
            center=make.Pose2D(position=centre, theta=0.0),
            size_x=float(item.x_max - item.x_min),
            size_y=float(item.y_max - item.y_min),
        )
        number = item.get("track_id")
        name = "" if number is None else str(number)
        detections.append(make.Detection2D(header=header, results=[known], bbox=box, id=name))
    return make.Detection2DArray(header=header, detections=detections)


def detections_from_ros(message: Any, width: int, height: int) -> Detections:
    """Return a `vision_msgs/Detection2DArray` about an image of so many pixels; the best hypothesis gives the label.

    A box that is turned becomes the upright one around it; InputError for numbers that are not finite, or sides below
    0. Messages may be Foxy's or later ones.
    """
    objects = []
    for detection in message.detections:
        box = detection.bbox
        place = getattr(box.center, "position", box.center)
        numbers = (place.x, place.y, box.center.theta, box.size_x, box.size_y)
        if not all(map(math.isfinite, numbers)) or min(box.size_x, box.size_y) < 0:
            raise InputError(f"a box has centre, angle and size {numbers}: give finite numbers, sides of at least 0")
        across, up = abs(math.cos(box.center.theta)), abs(math.sin(box.center.theta))
        half = (across * box.size_x + up * box.size_y) / 2, (up * box.size_x + across * box.size_y) / 2
        item: dict[str, Any] = {
            "x_min": (place.x - half[0]) / width,
            "y_min": (place.y - half[1]) / height,
            "x_max": (place.x + half[0]) / width,
            "y_max": (place.y + half[1]) / height,
        }
        if len(detection.results):
            hypotheses = (getattr(known, "hypothesis", known) for known in detection.results)
            best = max(hypotheses, key=lambda hypothesis: hypothesis.score)
            item |= {"label": best.class_id if hasattr(best, "class_id") else best.id, "score": float(best.score)}
        if name := getattr(detection, "id", ""):
            item["track_id"] = int(name) if re.fullmatch("0|[1-9][0-9]{0,17}", name) else name
        objects.append(item)
    return Detections(objects, picture_size=(width, height))


def points_to_ros(result: Points, header: Any, *, messages: Any = None) -> list[Any]:
    """Return points as `geometry_msgs/PointStamped` in pixels, z = 0; raises `InputError` as `detections_to_ros`."""
    make = messages or ros_messages()
    items = result.to_pixels(*result.size()).points
    return [
        make.PointStamped(header=header, point=make.Point(x=float(item.x), y=float(item.y), z=0.0)) for item in items
    ]


def points_from_ros(messages: Iterable[Any], width: int, height: int, label: str = "") -> Points:
    """Return `geometry_msgs/Point` or `PointStamped` in pixels of an image of that size."""
    points = [getattr(message, "point", message) for message in messages]
    items = [{"x": point.x / width, "y": point.y / height, **({"label": label} if label else {})} for point in points]
    return Points(items, picture_size=(width, height))


@cache
def ros_messages() -> Any:
    """Return ROS's own classes, or plain objects with the same fields where its packages cannot be imported."""
    try:
        return SimpleNamespace(
            **{name: getattr(importlib.import_module(f"{home}.msg"), name) for name, home in _HOMES.items()}
        )
    except ImportError:
        return SimpleNamespace(**dict.fromkeys(_HOMES, SimpleNamespace))


def _bytes_of(data: Any) -> NDArray[np.uint8]:
    try:
        return np.frombuffer(data, np.uint8)
    except (TypeError, ValueError):
        pass
    try:
        return np.asarray(data, np.uint8)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"the data of the image are no bytes: {error}") from error


def _rgb_of_yuv(pixels: NDArray[np.uint8], light: int) -> NDArray[np.uint8]:
    """Convert pairs of pixels that share their colour (ITU-R BT.601, limited range); `light` is the place of Y."""
    if pixels.shape[1] % 2:
        raise ImageShapeError(f"the image is {pixels.shape[1]} pixels wide: 4:2:2 takes an even number")
    y = 1.164 * (pixels[..., light].astype(np.float32) - 16)
    u, v = (np.repeat(pixels[:, place::2, 1 - light], 2, axis=1).astype(np.float32) - 128 for place in (0, 1))
    rgb = np.stack((y + 1.596 * v, y - 0.392 * u - 0.813 * v, y + 2.017 * u), axis=-1)
    return np.clip(rgb + 0.5, 0, 255).astype(np.uint8)
