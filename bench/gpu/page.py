"""A report that is written to a file as it grows."""

from pathlib import Path


class Page:
    """The report: sections that are printed once and written to a file again whenever one of them has changed.

    Args:
        title: Stands above them.
        path: Of the file; None writes none.
    """

    def __init__(self, title: str, path: Path | None) -> None:
        self._title = title
        self._path = path
        self._sections: dict[str, str] = {}

    def put(self, name: str, text: str) -> None:
        """Set a section and write the file."""
        self._sections[name] = text
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(f"# {self._title}\n\n{self}\n")

    def __str__(self) -> str:
        return "\n\n".join(f"## {name}\n\n{text}" if name else text for name, text in self._sections.items())
