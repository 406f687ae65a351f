import array
import io
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from photonlite import Detections, Points, ros
from photonlite.errors import ImageShapeError, InputError
from photonlite.images.decode import load_image
from photonlite.ros import (
    detections_from_ros,
    detections_to_ros,
    image_from_ros,
    image_to_ros,
    points_from_ros,
    points_to_ros,
)

# https://github.com/ros-perception/vision_msgs, branch ros2.
VISION = {
    "Point2D": "float64 x\nfloat64 y",
    "Pose2D": "vision_msgs/Point2D position\nfloat64 theta",
    "BoundingBox2D": "vision_msgs/Pose2D center\nfloat64 size_x\nfloat64 size_y",
    "ObjectHypothesis": "string class_id\nfloat64 score",
    "ObjectHypothesisWithPose": "vision_msgs/ObjectHypothesis hypothesis\ngeometry_msgs/PoseWithCovariance pose",
    "Detection2D": "std_msgs/Header header\nvision_msgs/ObjectHypothesisWithPose[] results\n"
    "vision_msgs/BoundingBox2D bbox\nstring id",
    "Detection2DArray": "std_msgs/Header header\nvision_msgs/Detection2D[] detections",
}
STORE = get_typestore(Stores.ROS2_HUMBLE)
for name, text in VISION.items():
    STORE.register(get_types_from_msg(text, f"vision_msgs/msg/{name}"))
MESSAGES = SimpleNamespace(**{name: STORE.types[f"{home}/msg/{name}"] for name, home in ros._HOMES.items()})
HEADER = STORE.types["std_msgs/msg/Header"](
    stamp=STORE.types["builtin_interfaces/msg/Time"](sec=12, nanosec=345), frame_id="camera"
)


def over_the_wire(message: Any) -> Any:
    kind = message.__msgtype__
    return STORE.deserialize_cdr(STORE.serialize_cdr(message, kind), kind)


def message(encoding: str, pixels: Any, *, padding: int = 0, big: bool = False) -> Any:
    """An image message whose rows end in `padding` bytes of 77."""
    height, width = pixels.shape[:2]
    rows = np.ascontiguousarray(pixels).view(np.uint8).reshape(height, -1)
    data = np.pad(rows, ((0, 0), (0, padding)), constant_values=77)
    made = MESSAGES.Image(
        header=HEADER, height=height, width=width, encoding=encoding, is_bigendian=int(big), step=data.shape[1],
        data=data.reshape(-1),
    )  # fmt: skip
    return over_the_wire(made)


RGB = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
ALPHA = np.full((4, 6, 1), 9, np.uint8)


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize(
    ("encoding", "pixels"),
    [
        ("rgb8", RGB),
        ("bgr8", RGB[..., ::-1]),
        ("8UC3", RGB[..., ::-1]),
        ("rgba8", np.concatenate((RGB, ALPHA), axis=2)),
        ("bgra8", np.concatenate((RGB[..., ::-1], ALPHA), axis=2)),
    ],
)
def test_colours_arrive_as_they_are(encoding: str, pixels: Any, padding: int) -> None:
    assert np.array_equal(np.asarray(image_from_ros(message(encoding, pixels, padding=padding))), RGB)


@pytest.mark.parametrize("big", [False, True])
def test_grey_images_of_8_and_16_bits(big: bool) -> None:
    grey = RGB[..., 0]
    wide = (grey.astype(np.uint16) << 8 | 7).astype(">u2" if big else "<u2")
    expected = np.stack((grey, grey, grey), axis=2)

    assert np.array_equal(np.asarray(image_from_ros(message("mono8", grey))), expected)
    assert np.array_equal(np.asarray(image_from_ros(message("mono16", wide, padding=4, big=big))), expected)


@pytest.mark.parametrize(("encoding", "red"), [("yuv422", (90, 81, 240, 81)), ("yuv422_yuy2", (81, 90, 81, 240))])
def test_yuv_is_converted(encoding: str, red: tuple[int, ...]) -> None:
    pixels = np.array([red * 2] * 2, np.uint8).reshape(2, 4, 2)
    image = np.asarray(image_from_ros(message(encoding, pixels))).astype(int)

    assert image.shape == (2, 4, 3)
    assert np.abs(image - (255, 0, 0)).max() <= 3


def test_a_compressed_image_is_its_file() -> None:
    file = io.BytesIO()
    Image.fromarray(RGB).save(file, "PNG")
    kind = STORE.types["sensor_msgs/msg/CompressedImage"]
    sent = over_the_wire(kind(header=HEADER, format="png", data=np.frombuffer(file.getvalue(), np.uint8)))

    assert np.array_equal(np.asarray(load_image(image_from_ros(sent))), RGB)


def test_an_image_goes_there_and_back() -> None:
    sent = over_the_wire(image_to_ros(Image.fromarray(RGB), HEADER, messages=MESSAGES))

    assert sent.header == HEADER
    assert np.array_equal(np.asarray(image_from_ros(sent)), RGB)


def test_the_classes_of_ros_get_a_standard_array() -> None:
    class Own(SimpleNamespace):
        get_fields_and_field_types = None

    sent = image_to_ros(Image.fromarray(RGB), HEADER, messages=SimpleNamespace(Image=Own))

    assert sent.data == array.array("B", RGB.tobytes())
    assert np.array_equal(np.asarray(image_from_ros(sent)), RGB)


def test_images_that_contradict_themselves_are_refused() -> None:
    good = {"width": 2, "height": 2, "step": 6, "encoding": "rgb8", "is_bigendian": 0, "data": bytes(12)}
    wrong: tuple[dict[str, Any], ...] = (
        {"data": bytes(11)}, {"step": 5}, {"width": 0}, {"height": -1}, {"encoding": "bayer_rggb8"},
        {"encoding": "yuv422", "width": 3},
    )  # fmt: skip

    assert image_from_ros(SimpleNamespace(**good)).size == (2, 2)  # type: ignore[union-attr]
    assert image_from_ros(SimpleNamespace(**{**good, "data": [0] * 12})).size == (2, 2)  # type: ignore[union-attr]
    for change in wrong:
        with pytest.raises(ImageShapeError):
            image_from_ros(SimpleNamespace(**{**good, **change}))
    with pytest.raises(InputError, match="no bytes"):
        image_from_ros(SimpleNamespace(**{**good, "data": ["a"] * 12}))


MUG = {"x_min": 0.25, "y_min": 0.5, "x_max": 0.5, "y_max": 0.75, "label": "mug", "score": 0.5, "track_id": 7}
KEY = {"x_min": 0.0, "y_min": 0.0, "x_max": 0.125, "y_max": 1.0, "label": "key", "score": 0.25}


def test_detections_go_there_and_back_in_pixels() -> None:
    found = Detections([MUG, KEY], picture_size=(640, 480))
    sent = over_the_wire(detections_to_ros(found, HEADER, messages=MESSAGES))
    first = sent.detections[0]

    assert sent.header == first.header == HEADER
    assert (first.bbox.center.position.x, first.bbox.center.position.y) == (240, 300)
    assert (first.bbox.size_x, first.bbox.size_y, first.id) == (160, 120, "7")
    assert (first.results[0].hypothesis.class_id, first.results[0].hypothesis.score) == ("mug", 0.5)
    assert sent.detections[1].id == ""
    assert detections_from_ros(sent, 640, 480) == found


def test_the_best_hypothesis_names_a_detection() -> None:
    sent = detections_to_ros(Detections([MUG, KEY], picture_size=(640, 480)), HEADER)
    sent.detections[1].results += sent.detections[0].results
    sent.detections[0].results.clear()
    first, second = detections_from_ros(sent, 640, 480).objects

    assert "label" not in first
    assert (second.label, second.score) == ("mug", 0.5)


def turned(theta: float = 0.0, **change: Any) -> Any:
    """A message of Foxy or a later one about a box of 80 x 20 pixels in the middle of an image of 100 x 100."""
    box = {
        "center": SimpleNamespace(position=SimpleNamespace(x=50.0, y=50.0), theta=theta),
        "size_x": 80.0,
        "size_y": 20.0,
    }
    return SimpleNamespace(
        detections=[SimpleNamespace(**{"bbox": SimpleNamespace(**box), "results": [], "id": ""} | change)]
    )


@pytest.mark.parametrize(
    ("theta", "box"),
    [
        (0.0, [0.1, 0.4, 0.9, 0.6]),
        (math.pi / 2, [0.4, 0.1, 0.6, 0.9]),
        (-math.pi, [0.1, 0.4, 0.9, 0.6]),
        (math.pi / 4, [0.5 - math.sqrt(0.125), 0.5 - math.sqrt(0.125), 0.5 + math.sqrt(0.125), 0.5 + math.sqrt(0.125)]),
    ],
)
def test_a_turned_box_becomes_the_upright_one_around_it(theta: float, box: list[float]) -> None:
    assert detections_from_ros(turned(theta), 100, 100).boxes[0] == pytest.approx(box)


@pytest.mark.parametrize("theta", [math.nan, math.inf])
def test_a_box_without_finite_numbers_is_refused(theta: float) -> None:
    with pytest.raises(InputError, match="give finite numbers"):
        detections_from_ros(turned(theta), 100, 100)


def test_messages_of_foxy_are_read() -> None:
    box = SimpleNamespace(center=SimpleNamespace(x=50.0, y=50.0, theta=0.0), size_x=80.0, size_y=20.0)
    found = detections_from_ros(turned(bbox=box, results=[SimpleNamespace(id="mug", score=0.5)]), 100, 100)

    assert found.boxes[0] == pytest.approx([0.1, 0.4, 0.9, 0.6])
    assert found.labels == ["mug"]


@pytest.mark.parametrize(("name", "number"), [("7", 7), ("0", 0), ("007", "007"), ("9" * 5000, "9" * 5000), ("a", "a")])
def test_ids_come_back_as_they_were_sent(name: str, number: object) -> None:
    assert detections_from_ros(turned(id=name), 100, 100).objects[0]["track_id"] == number


def test_points_go_there_and_back_in_pixels() -> None:
    found = Points([{"x": 0.25, "y": 0.5, "label": "mug"}], picture_size=(640, 480))
    [sent] = [over_the_wire(one) for one in points_to_ros(found, HEADER, messages=MESSAGES)]

    assert sent.header == HEADER
    assert (sent.point.x, sent.point.y, sent.point.z) == (160, 240, 0)
    assert points_from_ros([sent], 640, 480, "mug") == found == points_from_ros([sent.point], 640, 480, "mug")


def test_plain_objects_stand_in_where_ros_is_not_installed() -> None:
    sent = detections_to_ros(Detections([MUG], picture_size=(640, 480)), "header")

    assert type(sent) is SimpleNamespace
    assert sent.detections[0].header == "header"


def test_results_without_a_size_are_refused() -> None:
    with pytest.raises(InputError, match="size is not known"):
        detections_to_ros(Detections([MUG]), HEADER)
