"""What is printed about the next run holds for plain JAX, and its advice makes that run hit."""

import re
from pathlib import Path

import pytest
from acting import PROGRAM, act, acts_on, path_of, says, with_settings
from plain_jax import Counts

pytestmark = pytest.mark.jax

#: A name, a constant and an address that are new in each process.
CHANGING = {
    "name": "f = lambda x: x * 3; f.__name__ = 'f' + os.urandom(4).hex(); jax.jit(f)(np.ones(3))",
    "constant": "c = np.frombuffer(os.urandom(8), np.uint32); jax.jit(lambda x: x + c)(np.ones(2))",
    "address": "a = id(object()) % 997 + os.getpid(); jax.jit(lambda x: x * a)(np.ones(3))",
}
PROMISES = ("the next run saves", "the next run with this cache hits", "the next one finds")
SET = "jax.config.update('jax_compilation_cache_dir', os.path.abspath('other'))"


@acts_on("The next run misses, too; a larger cap keeps them")
@pytest.mark.parametrize(("way", "cap"), [("warm", "4000"), ("run", "0")])
def test_a_cap_below_what_one_run_writes(way: str, cap: str, program) -> None:
    jax = program(JAX_COMPILATION_CACHE_MAX_SIZE=cap)
    name, *words = jax.ways[way]
    told = jax.told(name, "--fail-on-miss", *words, code=1)
    assert not any(p in told for p in PROMISES)
    assert f"jax_compilation_cache_max_size is {cap}" in told
    assert jax.run().hits == 0
    if way == "warm":
        assert "JAX evicted its entry, because the cap is too small" in jax.told(name, *words)
        assert "cap-too-small" in jax.told(*jax.ways["explain"])
    jax.env = with_settings(told, jax.env)
    jax.run()
    assert jax.run() == Counts(2, 0, 2)


@acts_on("JAX evicts entries before another run reads them, and that run compiles again")
def test_doctor_after_a_run_whose_entries_were_evicted(program) -> None:
    jax = program(JAX_COMPILATION_CACHE_MAX_SIZE="4000")
    jax.told(*jax.ways["run"])
    told = jax.doctor(code=1)
    assert says(told, "and that run compiles again")
    shown = re.search(
        r"max_size is 4000 bytes, and the 2 entries of the last run \(program.py\) have (\d+); "
        r"evicted: jit__lambda ",
        told,
    )
    assert jax.run().hits == 0
    jax.env = with_settings(told, jax.env)
    assert "max_size is" not in jax.doctor()
    jax.told(*jax.ways["run"])
    assert jax.run() == Counts(2, 0, 2)
    sizes = [path.stat().st_size for path in (jax.home / "cache").glob("*-cache")]
    assert len(sizes) == 2  # XLA's code has another size in each compile
    assert shown and int(shown[1]) == pytest.approx(sum(sizes), rel=0.1)
    jax.told("rm", "*", "--yes", "-C", str(jax.home / "cache"))
    jax.env["JAX_COMPILATION_CACHE_MAX_SIZE"] = "4000"
    assert "max_size is" not in jax.doctor()  # no eviction: jaxcache removed them


def test_doctor_after_a_run_with_an_entry_larger_than_the_cap(program) -> None:
    """Nobody knows what it needs, so that only no cap is sure to help."""
    jax = program(JAX_COMPILATION_CACHE_MAX_SIZE="4000")
    jax.write("jax.jit(lambda x: x.cumsum(0).sort(0).argsort(0).cumsum(1))(np.ones((8, 8)))")
    jax.told(*jax.ways["run"])
    told = jax.doctor(code=1)
    assert "; larger than the cap: jit__lambda " in told
    jax.env = with_settings(told, jax.env)
    assert jax.env["JAX_COMPILATION_CACHE_MAX_SIZE"] == "-1"


def test_contents_that_are_checked_promise_nothing(program) -> None:
    jax = program(JAX_COMPILATION_CACHE_CHECK_CONTENTS="1")
    told = jax.told(*jax.ways["warm"])
    assert not any(p in told for p in PROMISES)
    counts = jax.run()
    assert counts is None or counts.hits == 0  # JAX ends it where the machine code differs
    told = jax.doctor(code=1)
    jax.env = with_settings(told, jax.env)
    assert jax.run() == Counts(2, 0, 2)


@acts_on("unset … where the program runs")
@pytest.mark.parametrize(
    ("way", "text"),
    [("warm", "0"), ("warm", "maybe"), ("explain", "False")],
)
def test_a_setting_that_warm_overrides(way: str, text: str, program) -> None:
    jax = program(JAX_ENABLE_COMPILATION_CACHE=text)
    if way != "warm":
        jax.told(*jax.ways["warm"])
    told = jax.told(*jax.ways[way])
    assert not any(p in told for p in PROMISES)
    counts = jax.run()
    if text == "maybe":
        assert "plain JAX refuses it" in told and counts is None
    else:
        assert "plain JAX neither reads nor writes the cache" in told
        assert counts == Counts(0, 0, 0)
    jax.env = with_settings(told, jax.env)
    assert jax.run() == Counts(2, 0, 2)


@pytest.mark.parametrize(
    "unfit",
    [
        {"JAX_ENABLE_COMPILATION_CACHE": "2"},
        {"JAX_COMPILATION_CACHE_MAX_SIZE": "10MB"},
        pytest.param(
            {
                "JAX_COMPILATION_CACHE_MAX_SIZE": "100",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "1000000",
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1e9",
            },
            marks=acts_on(
                "for no cap, and run jaxcache prune --max-size",
                "export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=0",
                "export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0",
            ),
        ),
    ],
    ids=["no switch", "no size", "too narrow"],
)
def test_what_doctor_says_to_set(unfit: dict[str, str], program) -> None:
    jax = program(**unfit)
    jax.env = with_settings(jax.doctor(code=1), jax.env)
    jax.doctor()
    jax.run()
    assert jax.run().hits == 2


@pytest.mark.parametrize("raised", ["0", "1"])
def test_a_damaged_entry_where_errors_are_raised(raised: str, program) -> None:
    jax = program(JAX_RAISE_PERSISTENT_CACHE_ERRORS=raised)
    assert jax.run() is not None
    for entry in Path(jax.env["JAX_COMPILATION_CACHE_DIR"]).glob("*-cache"):
        entry.write_bytes(entry.read_bytes()[:-40])
    told = jax.doctor(code=1)
    counts = jax.run()
    assert ("JAX ends the program" in told) == (counts is None) == (raised == "1")
    assert ("JAX warns and compiles at every run" in told) == (counts == Counts(0, 2, 2))


def test_the_directory_that_jax_opened_first_stays(program) -> None:
    jax = program()
    jax.write(SET)
    other = jax.home / "other"
    told = jax.told(*jax.ways["warm"])
    assert "is relative" not in told and "hits only as" not in told
    assert f"JAX keeps the cache directory that it opened first, {jax.home / 'cache'}" in told
    assert f"set jax_compilation_cache_dir to {other}" in told
    told = jax.told(*jax.ways["doctor"])
    assert "other-directory" not in told and "cache-dir-in-key" not in told
    assert jax.run() == Counts(2, 0, 2)
    assert not other.exists()
    jax.script.write_text(f"import jax, os\n{SET}\n{PROGRAM.format(code='')}")
    jax.told(*jax.ways["warm"])
    assert len(list(other.glob("*-cache"))) == 2
    assert jax.run() == Counts(2, 0, 2)


@acts_on("written under another key by an equal run before, so that the next run may miss, too")
@acts_on("hits by chance at most: a name, pointer, constant or the order of a set")
@pytest.mark.parametrize(
    "kind", ["name", *(pytest.param(n, marks=pytest.mark.slow) for n in ("constant", "address"))]
)
def test_a_key_that_is_new_in_each_process(kind: str, program) -> None:
    jax = program()
    jax.write(CHANGING[kind])
    name, *words = jax.ways["warm"]
    jax.told(name, *words)
    printed = jax.printed(name, "--fail-on-miss", *words, code=1)
    told = " ".join(printed.split())
    assert not any(p in told for p in PROMISES)
    assert "written under another key by an equal run before" in told
    assert "first time" not in told
    line = next(line for line in printed.splitlines() if "under another key" in line)
    act(line, jax.home, **jax.env)
    assert says(jax.told(*jax.ways["explain"]), "hits by chance at most: a name")
    counts = jax.run()
    assert (counts.hits, counts.writes) == (2, 1)


def test_a_set_is_ordered_by_the_hash_seed(program) -> None:
    jax = program(PYTHONHASHSEED="0")
    jax.write("jax.jit(lambda x: sum(x ** len(s) for s in {'a', 'bb', 'ccc', 'dddd'}))(np.ones(3))")
    jax.told(*jax.ways["warm"])
    jax.env["PYTHONHASHSEED"] = "1"
    assert says(jax.told(*jax.ways["explain"]), "PYTHONHASHSEED was 0, and is 1")
    counts = jax.run()  # with 0
    assert (counts.hits, counts.writes) == (3, 0)


@acts_on("JAX has no cache directory: export JAX_COMPILATION_CACHE_DIR=DIR, which plain Python")
def test_a_run_without_a_directory(program) -> None:
    jax = program()
    del jax.env["JAX_COMPILATION_CACHE_DIR"]
    name, *words = jax.ways["run"]
    told = jax.told(name, "--fail-on-miss", *words, code=1)
    assert says(told, "export JAX_COMPILATION_CACHE_DIR=DIR")
    jax.env = with_settings(told.replace("=DIR", f"={jax.home}/cache"), jax.env)
    jax.told(name, *words)
    assert jax.run() == Counts(2, 0, 2)


@acts_on("compiled faster than JAX's threshold and … not written; jaxcache warm, or ")
def test_compiles_below_the_threshold(program) -> None:
    jax = program()
    del jax.env["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"]
    told = jax.told(*jax.ways["run"])
    assert "the next run" not in told
    assert jax.run().hits == 0
    says(told)
    jax.told(*jax.ways["warm"])
    assert jax.run().hits == 2
    jax.told("rm", "*", "--yes")
    jax.env |= dict([told.partition("jaxcache warm, or ")[2].split(",")[0].split("=")])
    jax.run()
    assert jax.run().hits == 2


@acts_on("the next run with this cache hits; with --no-write it would fail again")
@acts_on("… written: the next run saves up to …")
def test_a_miss_that_fails_a_run(program) -> None:
    """An edit is no change in each process."""
    jax = program()
    name, *words = jax.ways["warm"]
    told = jax.told(name, "--fail-on-miss", "--no-write", *words, code=1)
    assert "next run hits" not in told
    told = jax.told(name, "--fail-on-miss", *words, code=1)
    assert says(told, "All is cached now, so the next run with this cache hits")
    assert jax.run() == Counts(2, 0, 2)
    jax.write("jax.jit(lambda x: x * 3)(np.ones(3))")
    told = jax.told(name, *words)
    assert says(told, "1 entry written: the next run saves") and "equal run" not in told
    assert jax.run() == Counts(3, 0, 3)


@acts_on("to run the script: jaxcache warm …, or jaxcache run -- python …")
def test_a_script_in_the_place_of_a_command(program) -> None:
    jax = program()
    told = jax.told("run", "--", "./program.py", code=2)
    says(told)
    for command in told.partition("to run the script: ")[2].split(", or "):
        act(command, jax.home, **jax.env, PATH=path_of(jax.python))
    assert jax.run() == Counts(2, 0, 2)
