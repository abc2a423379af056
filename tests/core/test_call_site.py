"""How a program is named, and whose a file is."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from jaxcache.core.call_site import is_library, name_program


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/home/me/train.py", False),
        ("/venv/lib/python3.11/site-packages/flax/a.py", True),
        ("/usr/lib/python3/dist-packages/numpy/a.py", True),
        ("/usr/lib/python3.11/json/decoder.py", True),
        ("/home/me/lib/python3.py", False),
        ("C:\\venv\\Lib\\site-packages\\flax\\a.py", True),
        ("<stdin>", True),
        ("<ipython-input-3-abc>", False),
    ],
)
def test_files_of_libraries_are_told_from_the_users(file: str, expected: bool) -> None:
    assert is_library(file) is expected


@pytest.mark.parametrize(
    ("argv", "module", "notebook", "name", "place"),
    [
        (["train.py", "--x"], None, "", "train.py", "HERE/train.py"),
        (["HERE/train.py"], None, "", "train.py", "HERE/train.py"),
        (["./link.py"], None, "", "./link.py", "HERE/train.py"),
        (["gone.py"], None, "", "gone.py", "gone.py\0HERE"),
        (["-c"], None, "", "-c", "-c\0HERE"),
        ([""], None, "", "-", "-\0HERE"),
        ([], None, "", "-", "-\0HERE"),
        (["BIN/pytest"], None, "", "pytest", "pytest\0HERE"),
        (["/x/pkg/__main__.py"], "pkg.__main__", "", "-m pkg", "-m pkg\0HERE"),
        (["/x/pkg/run.py"], "pkg.run", "", "-m pkg.run", "-m pkg.run\0HERE"),
        (["train.py"], "__mp_main__", "", "train.py", "HERE/train.py"),
        (["/tmp/a.ipynb"], None, "", "a.ipynb", "a.ipynb\0HERE/a.ipynb"),
        (["kernel.py"], None, "/n/b.ipynb", "b.ipynb", "b.ipynb\0/n/b.ipynb"),
    ],
)
def test_a_program_has_a_name_and_a_place(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    argv: list[str],
    module: str | None,
    notebook: str,
    name: str,
    place: str,
) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "link.py").symlink_to("train.py")
    main = ModuleType("__main__")
    main.__spec__ = SimpleNamespace(name=module) if module else None  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setenv("JPY_SESSION_NAME", notebook)
    here = str(tmp_path.resolve())
    places = {"HERE": here, "BIN": str(Path(sys.executable).parent)}

    def full(text: str) -> str:
        for word, path in places.items():
            text = text.replace(word, path)
        return text

    assert name_program([full(word) for word in argv], here) == (name, full(place))
