"""What people see: colour, narrow terminals, and names that want to do harm."""

import os
import re
import shutil
import sys
import time
from pathlib import Path

import pytest
import zstandard
from conftest import CORPUS, RunCli
from terminal import Terminal, columns, run_all, without_style

from jaxcache.cli.commands import COMMANDS

DAY_NS = 86_400 * 10**9
#: Wide, combining, right-to-left, emoji, control characters, markup, and just long.
HOSTILE = (
    "jit_訓練ステップの関数",
    "jit_e\u0301\u0302\u0303le\u0300ve",
    "jit_\u202eevil\u2066",
    "jit_🚀🧑‍🚀",
    "jit_\x1b[31mred\x1b[2J",
    "jit_tab\tand\nline",
    "jit_[bold red]x",
    "jit_" + "x" * 150,
)


@pytest.fixture
def cache(tmp_path: Path, corpus: Path) -> Path:
    """Entries of GPU and CPU, written and used a fixed number of days ago."""
    target = tmp_path / "cache"
    shutil.copytree(corpus / "0.12.0.1-cuda13-h200-zstd", target)
    for file in sorted((corpus / "0.10.2-cpu-zstd").iterdir())[:3]:
        shutil.copy(file, target)
    torn = next(target.glob("jit_sort*-cache"))
    torn.write_bytes(torn.read_bytes()[:-100])
    _date(target)
    return target


@pytest.fixture
def hostile(tmp_path: Path, corpus: Path) -> Path:
    """Sound entries under names that no honest program has."""
    target = tmp_path / "hostile"
    target.mkdir()
    source = next((corpus / "0.10.2-cpu-zstd").glob("jit_mlp*-cache"))
    for number, name in enumerate(HOSTILE):
        shutil.copy(source, target / f"{name}-{number:064x}-cache")
    _date(target)
    return target


def _date(cache: Path) -> None:
    now_ns = time.time_ns() - 60 * 10**9
    for number, file in enumerate(sorted(cache.iterdir())):
        # The same for both, because not every file system tells a use.
        os.utime(file, ns=(now_ns - number * DAY_NS, now_ns - number * DAY_NS))


TABLES = (
    "ls -C CACHE",
    "ls --long --sort size -C CACHE",
    "ls --group-by platform -C CACHE",
    "stats -C CACHE",
    "verify -C CACHE",
    "prune --max-size 60kB --dry-run -C CACHE",
    "seal --dry-run -C CACHE",
    "diff CACHE CACHE",
    "explain --churn -C CACHE",
)


def fits(line: str, width: int) -> bool:
    """Whether it is in its place; a key, a path or a command is kept whole, to be copied."""
    longest = max(map(columns, line.split()), default=0)
    copied = "\t" in line or line.startswith(("  fix", "  hint:"))
    return columns(line) <= width or longest > width // 2 or copied


@pytest.mark.parametrize("width", [60, 80, 127, 200])
def test_no_row_is_broken(cache: Path, hostile: Path, tmp_path: Path, width: int) -> None:
    lines = [t.replace("CACHE", str(c)).split() for c in (hostile, cache) for t in TABLES]
    lines.append(["show", "jit_訓練*", "-C", str(hostile)])
    for argv, (_, screen) in zip(lines, run_all(lines, home=tmp_path, width=width), strict=True):
        plain = without_style(screen)
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", plain), (argv, plain)
        assert "\u202e" not in plain
        assert [line for line in plain.splitlines() if not fits(line, width)] == [], argv


def test_a_key_that_a_table_shows_is_a_key(cache: Path, tmp_path: Path) -> None:
    ((_, screen),) = run_all([["ls", "-C", cache]], home=tmp_path, width=60)
    shown = [x.split()[0] for x in without_style(screen).splitlines() if x.startswith("jit_")]
    assert len(shown) == 11
    assert all(len(key) <= 16 and "…" in key for key in shown)
    found = run_all([["ls", "-q", k, "-C", cache] for k in shown], home=tmp_path, width=60)
    keys = [text.split() for _, text in found]
    assert sorted(k for (k,) in keys) == sorted(
        p.name.removesuffix("-cache") for p in cache.glob("*-cache")
    )
    ((code, said),) = run_all([["rm", "jit_…", "-y", "-C", cache]], home=tmp_path, width=60)
    assert (code, "[ambiguous-key]" in said) == (1, True)


def test_colour_is_a_choice(cache: Path, tmp_path: Path) -> None:
    def styled(*argv: str, **env: str) -> bool:
        ((_, screen),) = run_all([[*argv, "-C", str(cache)]], home=tmp_path, width=80, env=env)
        return "\x1b[" in screen

    assert styled("ls")
    assert not styled("ls", NO_COLOR="1")
    assert styled("ls", NO_COLOR="")
    assert not styled("ls", TERM="dumb")
    assert styled("ls", "--color", "always", NO_COLOR="1")
    assert not styled("--color", "never", "ls")
    assert not styled("ls", "--color=never")


def test_a_pipe_gets_no_colour_unless_asked(run_cli: RunCli, cache: Path) -> None:
    done = run_cli("show", "nothing", "-C", cache)
    assert "\x1b" not in done.stdout + done.stderr
    assert "\x1b" in run_cli("show", "nothing", "-C", cache, "--color", "always").stderr
    bad = run_cli("ls", "--color", "sometimes", "-C", cache)
    assert bad.returncode == 2
    assert "'auto', 'always', 'never'" in bad.stderr


@pytest.mark.parametrize("env", [{}, {"LANG": "C"}, {"LC_ALL": "POSIX"}], ids=str)
def test_a_container_without_a_locale_shows_the_same(
    cache: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    ((code, screen),) = run_all([["ls", "-C", cache]], home=tmp_path, width=60, env=env)
    assert (code, "…" in screen, "\\u" in screen) == (0, True, False)


def test_a_pipe_that_cannot_say_it_gets_escapes(spawn_cli: RunCli, hostile: Path) -> None:
    latin = spawn_cli("ls", "-q", "-C", hostile, env={"PYTHONIOENCODING": "ascii"})
    assert latin.returncode == 0
    assert "\\u8a13\\u7df4" in latin.stdout


_SLOW_WORK = """
import sys, time
from jaxcache.cli.terminal import progress_bar
with progress_bar("reading entries", in_bytes=len(sys.argv) > 1) as progress:
    print("none" if progress is None else "some")
    for done in range(30):
        if progress:
            progress(done * 1000, 30000)
        time.sleep(0.05)
"""


@pytest.mark.parametrize("unit", [[], ["bytes"]], ids=["things", "bytes"])
def test_a_bar_shows_how_far_how_fast_and_how_long(tmp_path: Path, unit: list[str]) -> None:
    terminal = Terminal([sys.executable, "-c", _SLOW_WORK, *unit], home=tmp_path, width=80)
    assert terminal.finish() == 0
    bars = [x for x in re.split(r"[\r\n]", without_style(terminal.text)) if "reading" in x]
    assert all(columns(bar) <= 80 for bar in bars)
    rate = r"[0-9.]+ [kM]B/s" if unit else r"[0-9,]+/s"
    assert any(re.search(rf"━.*{rate} .*0:00:0", bar) for bar in bars), bars


_AT_ONCE = """
import sys
from jaxcache.cli import terminal
terminal._BAR_AFTER_SECONDS = -1
from jaxcache.cli.main import main
main()
"""


@pytest.mark.parametrize("step", ["save", "restore"])
def test_a_step_of_a_job_shows_bytes_as_bytes(
    run_cli: RunCli, cache: Path, tmp_path: Path, step: str
) -> None:
    bundle = tmp_path / "cache.jxb"
    if step == "restore":
        assert run_cli("export", bundle, "-C", cache).returncode in (0, 3)
    job = cache if step == "save" else tmp_path / "job"
    more = [] if step == "save" else ["--everything"]
    words = [sys.executable, "-c", _AT_ONCE, "ci", step, str(bundle), "-C", str(job), *more]
    terminal = Terminal(words, home=tmp_path, width=80)
    assert terminal.finish() == (3 if step == "save" else 0), terminal.text  # one entry is damaged
    title = "saving" if step == "save" else "checking"
    bars = [x for x in re.split(r"[\r\n]", without_style(terminal.text)) if title in x]
    assert bars
    assert all(re.search(r"/[0-9.]+ [kM]B ", bar) for bar in bars), bars


def test_no_bar_in_a_pipe_or_on_a_dumb_terminal(tmp_path: Path) -> None:
    terminal = Terminal([sys.executable, "-c", _SLOW_WORK], home=tmp_path, env={"TERM": "dumb"})
    assert terminal.finish() == 0
    assert terminal.text == "none\n"


# No terminal obeys what an entry holds: each command shows an entry full of escape sequences.


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
    line: str, run_cli: RunCli, escaping: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    bundle = tmp_path / "bundle.jxb"
    assert run_cli("export", bundle, "-C", escaping).returncode in (0, 3)
    paths = {"CACHE": str(escaping), "OTHER": str(other), "BUNDLE": str(bundle)}
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
def test_nor_what_jaxlib_reads(line: str, run_cli: RunCli, escaping: Path, jax_python: str) -> None:
    words = [NAMED if word == "KEY" else word for word in line.split()]
    done = run_cli(*words, "-C", escaping, "--python", jax_python)
    assert not CONTROL.findall(done.stdout + done.stderr)
    if "--hlo" in words:
        assert done.returncode == 0, done.stderr
        assert r"\x1b]2;title\x07" in done.stdout
