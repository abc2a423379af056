"""Files in parts, and parts of files, as files of their own."""

import io
import os
from pathlib import Path

import pytest

from jaxcache.cache.bundle.parts import Window, first_part, open_whole, part_name

DATA = bytes(range(100))


def test_a_window_shows_its_part_alone() -> None:
    window = Window(io.BytesIO(DATA), 10, 20)
    assert window.read(99) == DATA[10:30]
    assert window.read(5) == b""
    assert (window.seek(5), window.read(3), window.read(1)) == (5, DATA[15:18], DATA[18:19])
    assert (window.seek(0), window.read(0), window.read(20)) == (0, b"", DATA[10:30])
    window.seek(50)
    assert window.read(1) == b""


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """A file of 100 bytes in parts of 40, 40 and 20."""
    for number, start in enumerate(range(0, 100, 40), 1):
        Path(part_name(str(tmp_path / "file"), number)).write_bytes(DATA[start : start + 40])
    return tmp_path / "file"


def test_parts_read_as_one_file(parts: Path) -> None:
    assert sorted(p.name for p in parts.parent.iterdir()) == ["file.001", "file.002", "file.003"]
    for name in (str(parts), f"{parts}.001"):
        with open_whole(name) as file:
            assert file.read() == DATA
            assert (file.seek(0, os.SEEK_END), file.tell(), file.read()) == (100, 100, b"")
            for at in (0, 39, 40, 41, 79, 80, 99, 100, 150):
                assert (file.seek(at), file.read(45)) == (at, DATA[at : at + 45])
            file.seek(10)
            assert (file.seek(30, os.SEEK_CUR), file.read(1)) == (40, DATA[40:41])
            assert (file.seek(-1, os.SEEK_END), file.read()) == (99, DATA[99:])
            assert file.readable() and file.seekable()


def test_a_whole_file_goes_before_its_parts(parts: Path) -> None:
    assert first_part(str(parts)) == f"{parts}.001"
    parts.write_bytes(b"whole")
    assert first_part(str(parts)) == str(parts)
    with open_whole(str(parts)) as file:
        assert file.read() == b"whole"
    with open_whole(f"{parts}.002") as file:  # of which it is not the first
        assert file.read() == DATA[40:80]


def test_a_gap_ends_the_file_and_a_missing_one_is_an_error(parts: Path) -> None:
    Path(f"{parts}.002").unlink()
    with open_whole(str(parts)) as file:
        assert file.read() == DATA[:40]
    Path(f"{parts}.001").unlink()
    for name in (str(parts), f"{parts}.001"):
        with pytest.raises(FileNotFoundError):
            open_whole(name)
