from pathlib import Path

import pytest

from photonlite.errors import InputError
from photonlite.server.key_file import read_keys

KEY = "0123456789abcdef"


@pytest.mark.parametrize("mode", [0o660, 0o606, 0o622, 0o602])
def test_a_file_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys"
    path.write_text(KEY)
    path.chmod(mode)

    with pytest.raises(InputError, match=rf"can be written by other users \(mode {mode:o}\): chmod 600") as caught:
        read_keys(path)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o644])
def test_a_file_that_others_may_at_most_read_is_taken(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# of the robots\n{KEY}\n")
    path.chmod(mode)

    assert read_keys(path) == (KEY,)
