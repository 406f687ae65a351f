import copy
import json
import pickle

import pytest

from photonlite.results import BoxItem, SegmentItem

BOX = {"x_min": 0.1, "y_min": 0.2, "x_max": 0.5, "y_max": 0.75}


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, BoxItem.copy, lambda i: pickle.loads(pickle.dumps(i))])
def test_an_item_is_a_dictionary_with_attributes(duplicate):
    item = duplicate(BoxItem(BOX, label="mug"))
    assert type(item) is BoxItem
    assert item == {**BOX, "label": "mug"}
    assert json.loads(json.dumps(item)) == item
    assert (item.x_min, item.label) == (0.1, "mug")
    assert repr(item) == repr(dict(item))


def test_an_attribute_sets_its_key():
    item = BoxItem(BOX)
    item.label = "cup"
    assert item["label"] == "cup"
    assert "label" in dir(item)


def test_a_missing_attribute_names_those_that_are_there():
    with pytest.raises(AttributeError, match="BoxItem has no 'score': it has x_min, y_min, x_max, y_max"):
        _ = BoxItem(BOX).score
    assert not hasattr(BoxItem(BOX), "label")


def test_the_box_of_an_outline_has_attributes_too():
    item = SegmentItem(path="M 0 0", bbox=BOX)
    assert item.bbox.y_max == 0.75
    assert item == {"path": "M 0 0", "bbox": BOX}
