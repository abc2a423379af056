"""A directory that is no cache and has caches below it: commands name them and do nothing."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import RunCli

import jaxcache

#: Where each cache below the directory is, and which of the corpus it is.
CACHES = {
    "cpu-old": "0.10.2-cpu-zstd",
    "machines/cpu-new": "0.12.0.1-cpu-zstd",
    "machines/gpu": "0.8.3-cuda13-h200-zstd",
}


@pytest.fixture
def above(tmp_path: Path, corpus: Path) -> Path:
    """A directory above three caches and one directory of notes."""
    path = tmp_path / "above"
    for name, source in CACHES.items():
        shutil.copytree(corpus / source, path / name)
    (path / "notes").mkdir()
    return path


def contents(directory: Path) -> dict[str, bytes]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "command",
    [
        "ls",
        "show jit",
        "stats",
        "report out.html",
        "warm train.py",
        "run true",
        "compile train.recipe",
        "explain jit",
        "explain --churn",
        "doctor",
        "verify",
        "verify --fix",
        "verify --restore",
        "seal",
        "prune --max-size 1 --yes",
        "rm jit --yes",
        "pin jit",
        "export out.jxb",
        "import small.jxb",
        "push elsewhere",
        "pull cache",
        "ci restore small.jxb --everything",
        "ci save other.jxb",
    ],
)
def test_the_caches_below_are_named_and_stay_as_they_are(
    run_cli: RunCli, above: Path, tmp_path: Path, corpus: Path, command: str
) -> None:
    shutil.copytree(corpus / "0.10.2-cpu-zstd", tmp_path / "cache")
    shutil.copy(Path(__file__).parents[1] / "data" / "golden" / "inputs" / "small.jxb", tmp_path)
    before = contents(above)
    done = run_cli("-C", above, *command.split())
    assert done.returncode == 10, done.stderr
    names = ", ".join(sorted(CACHES))
    assert f"no cache in {above}; caches below it: {names} [no-cache]" in done.stderr
    assert f"name one with -C, such as -C {above}/cpu-old" in done.stderr
    assert contents(above) == before


@pytest.mark.parametrize("command", ["copy cache", "push", "ci save"])
def test_a_target_above_caches_is_refused(
    run_cli: RunCli, above: Path, tmp_path: Path, corpus: Path, command: str
) -> None:
    shutil.copytree(corpus / "0.10.2-cpu-zstd", tmp_path / "cache")
    before = contents(above)
    place = [] if command.startswith("copy") else ["-C", tmp_path / "cache"]
    done = run_cli(*command.split(), above, *place)
    assert (done.returncode, "caches below it: cpu-old, " in done.stderr) == (10, True)
    assert contents(above) == before


def test_the_python_interface_names_them_too(above: Path) -> None:
    with pytest.raises(jaxcache.JaxcacheError, match="caches below it: cpu-old, ") as caught:
        jaxcache.open(above)
    assert caught.value.code == "no-cache"


def test_of_many_caches_five_are_named(run_cli: RunCli, tmp_path: Path, corpus: Path) -> None:
    for number in range(7):
        shutil.copytree(corpus / "0.10.2-cpu-zstd", tmp_path / "above" / f"cache-{number}")
    done = run_cli("ls", "-C", tmp_path / "above")
    assert "cache-3, cache-4, and 2 more [no-cache]" in done.stderr


def test_an_entry_of_its_own_makes_a_directory_a_cache(run_cli: RunCli, above: Path) -> None:
    entry = next((above / "cpu-old").glob("*-cache"))
    shutil.copy(entry, above)
    listed = json.loads(run_cli("ls", "-C", above, "--json").stdout)
    assert [row["file"] for row in listed["entries"]] == [entry.name]


def test_a_link_to_a_cache_is_not_followed(run_cli: RunCli, above: Path, tmp_path: Path) -> None:
    shutil.move(above / "cpu-old", tmp_path / "outside")
    (above / "cpu-old").symlink_to(tmp_path / "outside")
    done = run_cli("ls", "-C", above)
    assert "caches below it: machines/cpu-new, machines/gpu [no-cache]" in done.stderr
