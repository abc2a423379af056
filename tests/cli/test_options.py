"""Options declared once: the command line and the Python interface make the same of them."""

from pathlib import Path
from typing import Any

import pytest
from acting import refused
from conftest import RunCli

import jaxcache
from jaxcache.cli.app import load_command
from jaxcache.cli.commands import COMMANDS
from jaxcache.cli.panels import in_panels
from jaxcache.errors import UsageError
from jaxcache.options import PANELS, PruneOptions
from jaxcache.options.move import ExportOptions
from jaxcache.options.run import CompileOptions, WarmOptions


def test_the_help_groups_options_under_headings(run_cli: RunCli) -> None:
    lines = run_cli("warm", "--help").stdout.splitlines()
    headings = [line.rstrip(":") for line in lines if line.endswith(":") and line[0] != " "]
    assert headings == ["Arguments", *(p for p in PANELS if p in headings)]
    assert {"Assertions", "MODULE:FUNCTION", "Recipe", "Absent hardware", "Output"} < {*headings}
    after = lines[lines.index("Assertions:") :]
    assert after[1].split()[0] == "--except"
    for name in COMMANDS:
        assert in_panels(p for p in load_command(name).params if p.param_type_name == "option")


def test_a_run_through_python_takes_the_options_of_the_command(tmp_path: Path) -> None:
    read = WarmOptions.read(timeout="2m", tiers=["near"], collect=50, record="r", check=True)
    assert (read.timeout_seconds, read.tiers, read.collect) == (120.0, ("near",), 50)
    assert (read.check_contents, read.patience_seconds) == (True, 60.0)
    assert CompileOptions.read(max_memory="2GB", check=True).max_memory_bytes == 2_000_000_000
    cache = jaxcache.open(tmp_path)
    for wrong, said in (
        ({"collect": 3}, "--collect-only needs --record"),
        ({"require_tuned": True}, "need --target"),
        ({"target": "p.json", "platform": "cpu"}, "--target and --platform cannot"),
    ):
        with pytest.raises(UsageError, match=said):
            cache.warm("train.py", **wrong)
    with pytest.raises(UsageError, match="cannot be combined"):
        cache.compile("r.recipe", portable=True, used_at="/x")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--fail-on-miss=²",), "'²' is not a duration"),
        # The rest is in the words of the parser, which differ between its versions.
        (("--collect-only=²",), "Invalid value for '--collect-only': "),
        (("--collect-only=1.5",), "Invalid value for '--collect-only': "),
        (("--timeout", "9" * 400 + "s"), "is not a duration"),
        (("--except", "uncacheable"), "--except needs --fail-on-miss"),
        (("--target", "p.json", "--processes", "2"), "--target and --processes cannot be combined"),
        (("--timeout", "soon"), "soon"),
        (("--tier", ""), "an empty path names no cache [bad-path]"),
        (("--record", ""), "cannot write '': its directory does not exist"),
        (("--trace", "none/t.json"), "cannot write 'none/t.json': its directory does not exist"),
    ],
)
def test_a_run_refuses_what_does_not_go_together(
    run_cli: RunCli, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    assert said in refused(run_cli, 2, "run", *words, "--", "touch", "ran")
    assert not (tmp_path / "ran").exists()


def test_text_and_numbers_are_the_same_options() -> None:
    """And one text is a list of one."""
    read = PruneOptions.read(max_size="10kB", unused_for="2h", grace=0, keep="a*", policy="lru")
    numbers = {"max_size_bytes": 10_000, "unused_for_seconds": 7200.0, "grace_seconds": 0}
    assert vars(read) == vars(PruneOptions(**numbers, keep=("a*",), policy="lru"))
    assert (PruneOptions().grace_seconds, PruneOptions().policy) == (60.0, "cost")
    assert read.replace(max_size_bytes=None).max_size_bytes is None
    assert ExportOptions.read(sign=Path("/keys/ci.key")).sign == ("/keys/ci.key",)
    with pytest.raises(AttributeError, match="frozen"):
        read.policy = "cost"


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ({"max_sise": 1}, TypeError, "no option max_sise"),
        ({"max_size_bytes": 1}, TypeError, "no option"),
        ({"policy": "fifo"}, UsageError, "'fifo' is not a policy"),
        ({"max_size": "much"}, UsageError, "not a size"),
        ({"max_size": "9" * 5000}, UsageError, "not a size"),
        ({"max_size": "9" * 400 + ".5GB"}, UsageError, "not a size"),
    ],
)
def test_what_cannot_be_read_is_refused(
    wrong: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        PruneOptions.read(**wrong)
    with pytest.raises(TypeError, match="has no field"):
        PruneOptions(max_size="10GB")
