"""How the words of a command line are read."""

import pytest
from conftest import RunCli
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcache.cli.app import load_parser, read_command_line
from jaxcache.cli.commands import COMMANDS
from jaxcache.cli.parser import ALONE
from jaxcache.errors import UsageError
from jaxcache.options import TEXTS


def read(line: str) -> dict[str, object]:
    """The values that a command gets."""
    call = read_command_line(line.split())
    return call.keywords  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("name", [n for n in COMMANDS if n != "completion"])
def test_each_option_is_read_in_all_its_spellings(name: str) -> None:
    declared = load_parser(name)[0].declared
    needed = ["a" for option in declared.values() if option.is_required]
    for spelling, (field, option, meaning) in load_parser(name)[0].options.items():
        if field in ("color", "help"):
            continue
        is_number = option.kind.type in (int, int | None)
        text = "3" if is_number or spelling in ALONE else "text"
        wanted = meaning if option.is_flag else 3 if is_number else text
        forms = [[spelling, text], [f"{spelling}={text}"]]
        if option.is_flag:
            forms = [[spelling]]
        elif not spelling.startswith("--"):
            forms = [[spelling, text], *([[spelling + text]] if spelling != "-m" else [])]
        for form in forms:
            parser, _ = load_parser(name)
            arguments = parser.split([*form, *needed])
            value = parser.values(arguments)[field]
            assert value == ([wanted] if option.kind is TEXTS else wanted), form
            assert arguments == needed


@given(st.sampled_from([*COMMANDS]), st.lists(st.text("-=abC3m.: ", max_size=8), max_size=5))
@settings(max_examples=500, deadline=None)
def test_any_words_are_read_or_refused(name: str, words: list[str]) -> None:
    parser, _ = load_parser(name)
    try:
        values = parser.values(parser.split(words))
    except UsageError as error:
        assert error.hint
    else:
        assert values.keys() >= parser.declared.keys()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ls --limit x", "--limit must be a whole number of at least 0 (got 'x')"),
        ("ls --limit -1", "--limit must be a whole number of at least 0 (got '-1')"),
        ("export f --level 23", "--level must be a whole number from 1 to 22 (got '23')"),
        ("ls --color blue", "--color must be one of auto, always, never (got 'blue')"),
        ("completion tcsh", "bash|zsh|fish must be one of bash, zsh, fish (got 'tcsh')"),
        ("ls --json=3", "Option '--json' does not take a value"),
        ("prune --unused-for", "Option '--unused-for' requires an argument"),
        ("diff a", "Missing argument 'B'"),
        ("diff a b c d", "Got unexpected extra argument(s) (c d)"),
        ("ls -lz", "No such option: -z"),
        ("-C x", "Missing command"),
        ("-C x bug-report --nope", "No such option: --nope"),
    ],
)
def test_a_mistake_is_named(run_cli: RunCli, line: str, message: str) -> None:
    done = run_cli(*line.split())
    assert (done.returncode, f"jaxcache: {message} [usage]" in done.stderr) == (2, True), done


def test_options_before_the_command_hold_for_it() -> None:
    assert read("-C near ls")["cache_dir"] == "near"
    assert read("-C near ls -C far")["cache_dir"] == "far"
    assert read("-Cnear ci key")["cache_dir"] == "near"
    assert "cache_dir" not in read("-C near trust list")
    with pytest.raises(UsageError, match="diff takes no --cache-dir"):
        read("-C near diff a b")


def test_what_follows_a_program_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    warm = read("warm --json train.py --steps 1 --json")
    assert (warm["script"], warm["arguments"]) == ("train.py", ["--steps", "1", "--json"])
    assert "--json was passed to train.py" in capsys.readouterr().err
    assert read("warm train.py -- --json")["arguments"] == ["--json"]
    assert read("warm -m package --json")["script"] == "--json"
    assert read("warm models.py:step --arg f32[8]")["words"] == ["f32[8]"]
    assert read("run --fail-on-miss -- ls --json")["command_line"] == ["ls", "--json"]
    assert read("run --fail-on-miss 2s ls")["fail_on_miss"] == "2s"
    assert read("run --fail-on-miss ls")["fail_on_miss"] == "0"
    assert read("warm --collect-only train.py")["collect"] == 50
