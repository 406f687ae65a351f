"""Data sets in a folder that are valid after every image that is added: files are replaced as a whole.

```
coco   DIR/images/  DIR/annotations.json
yolo   DIR/images/  DIR/labels/  DIR/data.yaml
```
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from photonlite.errors import InputError
from photonlite.results import Detections, Segments
from photonlite.results.export import yolo_rows

# What YAML does not take as it is; JSON has escaped what is below a space.
_ESCAPED: Final = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


class DataSet:
    """A folder with copies of images, and what was found in them."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        (folder / "images").mkdir(parents=True, exist_ok=True)

    def add(self, file_name: str, image: bytes, result: Detections | Segments) -> None:
        self._put(f"images/{file_name}", image)

    def save(self) -> None:
        """Write what is not yet written."""

    def _put(self, name: str, data: bytes) -> None:
        partial = self._folder / ".partial"
        try:
            partial.write_bytes(data)
            partial.replace(self._folder / name)
        except OSError as cause:  # such as a full disk, for which no image is to blame
            advice = "make room, and remove the folder"
            raise InputError(f"--output {self._folder} is not whole ({cause.strerror}): {advice}") from cause


class Coco(DataSet):
    """Rewrites its one file after every image, or from the second MiB on, after as many images as it has MiB."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        super().__init__(folder, names)
        self._ids = {name: number for number, name in enumerate(names, start=1)}
        categories = [json.dumps({"id": number, "name": name}) for name, number in self._ids.items()]
        self._rows: dict[str, list[str]] = {"images": [], "annotations": [], "categories": categories}  # in JSON
        self._first, self._unsaved, self._mib = 1, 0, 0  # id of the next annotation; images; size of the file

    def add(self, file_name: str, image: bytes, result: Detections | Segments) -> None:
        super().add(file_name, image, result)
        number, (width, height) = len(self._rows["images"]) + 1, result.size()
        row = {"id": number, "width": width, "height": height, "file_name": file_name}
        self._rows["images"].append(json.dumps(row))
        found = result.to_coco(image_id=number, category_ids=self._ids, first_id=self._first)
        self._first += len(found)
        self._rows["annotations"] += [json.dumps(each) for each in found if each.get("segmentation", True)]
        self._unsaved += 1
        if self._unsaved > self._mib:
            self.save()

    def save(self) -> None:
        text = ",\n".join(f'"{key}": [{", ".join(rows)}]' for key, rows in self._rows.items())
        self._put("annotations.json", f"{{{text}}}".encode())
        self._unsaved, self._mib = 0, len(text) >> 20


class Yolo(DataSet):
    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        super().__init__(folder, names)
        (folder / "labels").mkdir(exist_ok=True)
        self._ids = {name: number for number, name in enumerate(names)}
        # JSON is YAML as well. Ultralytics looks for relative paths among its own data sets.
        fields = {"path": str(folder.resolve()), "train": "images", "val": "images", "nc": len(names), "names": names}
        text = "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in fields.items())
        self._put("data.yaml", _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode())

    def add(self, file_name: str, image: bytes, result: Detections | Segments) -> None:
        width, height = result.size()
        [items] = result.to_pixels(width, height).values()
        labels = "".join(yolo_rows(items, width, height, self._ids))
        self._put(f"labels/{Path(file_name).stem}.txt", labels.encode())  # first: an image without is an empty scene
        super().add(file_name, image, result)


DATA_SETS: Final[dict[str, type[DataSet]]] = {"coco": Coco, "yolo": Yolo}
