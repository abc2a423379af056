"""What people see: colour, narrow terminals, and names that want to do harm."""

import re
import sys
from pathlib import Path

import pytest
import zstandard
from command_line import show_on_terminal
from conftest import CORPUS, RunCli
from terminal import Terminal, columns, run_on_terminal, without_style

from jaxcache.cli.terminal import terminal_width


def test_a_key_that_a_table_shows_is_a_key(local: Path, tmp_path: Path) -> None:
    def shown(*words: str) -> str:
        done = show_on_terminal([*words, "-C", local], home=tmp_path, width=50)
        return f"{without_style(done.stdout)}[{done.returncode}]"

    keys = [line.split()[0] for line in shown("ls").splitlines() if line.startswith("jit_")]
    assert any("…" in key for key in keys)
    found = [key for shortened in keys for key in shown("ls", "-q", shortened).split()[:-1]]
    assert sorted(found) == sorted(p.name.removesuffix("-cache") for p in local.glob("*-cache"))
    refused = shown("rm", "jit_…", "-y")
    assert "[ambiguous-key]" in refused and refused.endswith("[1]")


def test_colour_is_a_choice(local: Path, tmp_path: Path) -> None:
    def styled(*words: str, **env: str) -> bool:
        done = show_on_terminal([*words, "-C", local], home=tmp_path, width=80, env=env)
        return "\x1b[" in done.stdout

    assert styled("ls")
    assert not styled("ls", NO_COLOR="1")
    assert styled("ls", NO_COLOR="")
    assert not styled("ls", TERM="dumb")
    assert styled("ls", "--color", "always", NO_COLOR="1")
    assert not styled("--color", "never", "ls")
    assert not styled("ls", "--color=never")


def test_a_pipe_gets_no_colour_unless_asked(run_cli: RunCli, local: Path) -> None:
    done = run_cli("show", "nothing", "-C", local)
    assert "\x1b" not in done.stdout + done.stderr
    assert "\x1b" in run_cli("show", "nothing", "-C", local, "--color", "always").stderr


@pytest.mark.parametrize("env", [{"LANG": "C"}, {"LC_ALL": "POSIX"}], ids=str)
def test_a_container_without_a_locale_shows_the_same(
    local: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    code, screen = run_on_terminal("ls", "-C", local, home=tmp_path, width=60, env=env)
    assert (code, "…" in screen, "\\u" in screen) == (0, True, False)


def test_a_pipe_that_cannot_say_it_gets_escapes(spawn_cli: RunCli, local: Path) -> None:
    entry = next(local.glob("*-cache"))
    entry.rename(local / f"jit_訓練-{0:064x}-cache")
    latin = spawn_cli("ls", "-q", "-C", local, env={"PYTHONIOENCODING": "ascii"})
    assert (latin.returncode, "jit_\\u8a13\\u7df4" in latin.stdout) == (0, True)


@pytest.mark.parametrize(("columns", "width"), [("120", 120), ("1", 1), ("0", 80), ("wide", 80)])
def test_a_width_that_is_none_is_the_usual_one(
    monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal_width() == width


_SLOW_WORK = """
import os, time
from jaxcache.cli.terminal import progress_bar
for what in ("things", "bytes", "nothing"):
    if what == "nothing":
        os.environ["TERM"] = "dumb"
    with progress_bar(f"reading {what}", in_bytes=what == "bytes") as progress:
        for done in range(30 if progress else 0):
            progress(done * 1000, 30000)
            time.sleep(0.05)
"""


def bars(terminal: Terminal, title: str) -> list[str]:
    """The lines that a terminal showed under a title, up to the end of its process."""
    assert terminal.finish() == 0, terminal.text
    return [line for line in re.split(r"[\r\n]", without_style(terminal.text)) if title in line]


def test_a_bar_shows_how_far_how_fast_and_how_long(tmp_path: Path) -> None:
    shown = bars(Terminal([sys.executable, "-c", _SLOW_WORK], home=tmp_path), "reading")
    assert all(columns(bar) <= 80 for bar in shown)
    for what, rate in (("things", r"[0-9,]+/s"), ("bytes", r"[0-9.]+ [kM]B/s")):
        assert any(re.search(rf"{what} .*━.*{rate} .*0:00:0", bar) for bar in shown), shown
    assert not any("nothing" in bar for bar in shown)


_JOB = """
import sys
from jaxcache.cli import main, terminal
terminal._BAR_AFTER_SECONDS = -1
for step in (["save", "cache.jxb", "-C", sys.argv[1]], ["restore", "cache.jxb", "--everything"]):
    assert main.run(["ci", *step]) == 0
"""


def test_a_step_of_a_job_shows_bytes_as_bytes(local: Path, tmp_path: Path) -> None:
    job = [sys.executable, "-c", _JOB, local]
    env = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "job")}
    shown = bars(Terminal(job, home=tmp_path, env=env), "━")
    for step in ("saving", "checking"):
        of_step = [bar for bar in shown if bar.startswith(step)]
        assert of_step and all(re.search(r"/[0-9.]+ [kM]B ", bar) for bar in of_step), of_step


# No terminal obeys what an entry holds; ``tests/test_golden.py`` holds the same of names.


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
def escaping(tmp_path: Path) -> Path:
    """Two entries with such texts inside, one of which has such a name, too."""
    (source,) = (CORPUS / "0.10.2-cpu-zstd").glob("jit_mlp-*-cache")
    content = zstandard.decompress(source.read_bytes())
    for honest, hostile in SEQUENCES.items():
        assert len(honest) == len(hostile) and honest in content
        content = content.replace(honest, hostile)
    cache = tmp_path / "cache"
    cache.mkdir()
    named = content.replace(b"jit_mlp", TITLE.encode())
    (cache / f"{PLAIN}-cache").write_bytes(zstandard.compress(content))
    (cache / f"{NAMED}-cache").write_bytes(zstandard.compress(named))
    return cache


#: Commands that show what is in entries, and with names those that the golden record lacks;
#: CACHE, OTHER (an empty directory) and BUNDLE are paths.
LINES = [
    "ls --long -C CACHE",
    "ls --group-by function -C CACHE",
    "show * -v -C CACHE",
    "show CACHE/FILE -v",
    "report OTHER/report.html -C CACHE",
    "explain --churn -C CACHE",
    "explain KEY KEY -C CACHE",
    "doctor -C CACHE --python /nowhere",
    "bug-report -C CACHE --python /nowhere",
    "where -C CACHE",
    "diff CACHE OTHER",
    "verify -C CACHE",
    "verify --fix -C CACHE",
    "import BUNDLE -C OTHER",
]


@pytest.mark.parametrize("line", LINES)
def test_a_terminal_gets_no_escape_sequence_of_an_entry(
    line: str, run_cli: RunCli, escaping: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    bundle = tmp_path / "bundle.jxb"
    if "BUNDLE" in line:
        assert run_cli("export", bundle, "-C", escaping).returncode in (0, 3)
    paths = {"CACHE": str(escaping), "OTHER": str(other), "BUNDLE": str(bundle)}
    paths |= {"KEY": PLAIN, "FILE": f"{NAMED}-cache"}
    words = [re.sub("[A-Z]{3,}", lambda match: paths[match[0]], word) for word in line.split(" ")]
    for more in ([], ["--json", "--debug"]):
        done = run_cli(*words, *more)
        assert more or done.returncode not in (2, 70), done.stderr
        assert not CONTROL.findall(done.stdout + done.stderr)


@pytest.mark.jax
@pytest.mark.parametrize("line", ["show KEY --hlo --debug", "verify --level load --no-payload"])
def test_nor_what_jaxlib_reads(line: str, run_cli: RunCli, escaping: Path, jax_python: str) -> None:
    words = [NAMED if word == "KEY" else word for word in line.split()]
    done = run_cli(*words, "-C", escaping, "--python", jax_python)
    assert not CONTROL.findall(done.stdout + done.stderr)
    if "--hlo" in words:
        assert done.returncode == 0 and done.stdout.startswith("HloModule "), done.stderr
        assert r"\x1b]2;title\x07" in done.stdout and "f32[8,16]" in done.stdout
