"""No terminal obeys what an entry holds: each command shows an entry full of escape sequences."""

import re
from pathlib import Path

import pytest
import zstandard
from conftest import CORPUS, RunCli

from jaxcache.cli.commands import COMMANDS

#: Each has the length of what it replaces: the clipboard, colours, the cursor, a C1 control.
SEQUENCES = {
    b"jit(mlp)": b"\x1b]52;c;\x07",
    b"main.3": b"\x1b[31m3",
    b"reduce_max.3": b"\x1b[2J_max\xc2\x9b.3",
    b"wrapped_tanh": b"\x1b[31med_tanh",
    b"ynn_fusion": b"\x1b]2;title\x07",
    b"/tmp/fmt": b"/\x1b[1;1H/",
}
TITLE = "\x1b]0;xx\x07"
PLAIN = f"jit_mlp-{'2' * 64}"
NAMED = f"{TITLE}-{'1' * 64}"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Two entries with such texts inside, one of which has such a name, too."""
    (source,) = (CORPUS / "0.10.2-cpu-zstd").glob("jit_mlp-*-cache")
    content = zstandard.decompress(source.read_bytes())
    for honest, hostile in SEQUENCES.items():
        assert len(honest) == len(hostile)
        assert honest in content
        content = content.replace(honest, hostile)
    cache = tmp_path / "cache"
    cache.mkdir()
    named = content.replace(b"jit_mlp", TITLE.encode())
    (cache / f"{PLAIN}-cache").write_bytes(zstandard.compress(content))
    (cache / f"{NAMED}-cache").write_bytes(zstandard.compress(named))
    return cache


#: By command; CACHE, OTHER (an empty directory) and BUNDLE are paths.
LINES = {
    "ls": ["ls --long -C CACHE", "ls -q -C CACHE", "ls --group-by function -C CACHE"],
    "show": ["show * -v -C CACHE", "show CACHE/FILE -v"],
    "stats": ["stats -C CACHE"],
    "report": ["report OTHER/report.html -C CACHE"],
    "explain": ["explain --churn -C CACHE", "explain KEY KEY -C CACHE"],
    "doctor": ["doctor -C CACHE"],
    "where": ["where -C CACHE"],
    "diff": ["diff CACHE OTHER", "diff CACHE CACHE"],
    "bug-report": ["bug-report -C CACHE"],
    "verify": ["verify -C CACHE", "verify --no-payload -C CACHE", "verify --fix -C CACHE"],
    "seal": ["seal --dry-run -C CACHE", "seal -C CACHE"],
    "prune": ["prune --max-size 1B --dry-run -C CACHE"],
    "rm": ["rm * --dry-run -C CACHE", "rm * --yes -C CACHE"],
    "pin": ["pin * -C CACHE", "pin * --remove -C CACHE"],
    "export": ["export OTHER/bundle.jxb -C CACHE"],
    "import": ["import BUNDLE -C OTHER"],
    "push": ["push OTHER -C CACHE"],
    "pull": ["pull CACHE -C OTHER"],
    "copy": ["copy CACHE OTHER"],
    "ci restore": ["ci restore CACHE -C OTHER --everything"],
    "ci save": ["ci save OTHER/saved.jxb -C CACHE"],
}
#: What reads no entry; ``run``, ``warm`` and ``compile`` show modules of the program itself.
READ_NOTHING = {
    *("warm", "run", "compile", "target capture", "target check", "target show", "ci key"),
    *("trust here", "trust keygen", "trust add", "trust list", "trust remove", "completion"),
}


def test_every_command_is_here() -> None:
    assert LINES.keys() | READ_NOTHING == COMMANDS.keys()


@pytest.mark.parametrize("line", [line for lines in LINES.values() for line in lines])
def test_a_terminal_gets_no_escape_sequence_of_an_entry(
    line: str, run_cli: RunCli, cache: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    bundle = tmp_path / "bundle.jxb"
    assert run_cli("export", bundle, "-C", cache).returncode in (0, 3)
    paths = {"CACHE": str(cache), "OTHER": str(other), "BUNDLE": str(bundle)}
    paths |= {"KEY": PLAIN, "FILE": f"{NAMED}-cache"}
    words = [re.sub("[A-Z]{3,}", lambda match: paths[match[0]], word) for word in line.split(" ")]
    for more in ([], ["--json", "--debug"]):
        done = run_cli(*words, *more)
        assert more or done.returncode not in (2, 70), done.stderr
        assert not CONTROL.findall(done.stdout + done.stderr)


@pytest.mark.jax
@pytest.mark.parametrize(
    "line",
    ["show KEY --hlo", "verify --level load --no-payload", "doctor", "show KEY --hlo --debug"],
)
def test_nor_what_jaxlib_reads(line: str, run_cli: RunCli, cache: Path, jax_python: str) -> None:
    words = [NAMED if word == "KEY" else word for word in line.split()]
    done = run_cli(*words, "-C", cache, "--python", jax_python)
    assert not CONTROL.findall(done.stdout + done.stderr)
    if "--hlo" in words:
        assert done.returncode == 0, done.stderr
        assert r"\x1b]2;title\x07" in done.stdout
