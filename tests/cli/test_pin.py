"""``jaxcache pin``."""

import json
from pathlib import Path

from command_line import error_of
from conftest import RunCli


def test_pins_are_listed_honoured_and_taken_back(run_cli: RunCli, capped_cache: Path) -> None:
    assert run_cli("pin", "-C", capped_cache).stdout == ""
    key = run_cli("pin", "-C", capped_cache, "jit_ml").stdout.strip()
    assert key.startswith("jit_mlp-")
    assert json.loads(run_cli("pin", "-C", capped_cache, "--json").stdout)["pinned"] == [key]
    refused = run_cli("rm", "-C", capped_cache, "jit_mlp", "--yes", "--json")
    assert refused.returncode == 1
    assert error_of(refused) == "pinned"
    assert run_cli("pin", "--remove", "-C", capped_cache).returncode == 2
    assert run_cli("pin", "--remove", "-C", capped_cache, "jit_nothing").returncode == 1
    assert run_cli("pin", "--remove", "-C", capped_cache, key[:20]).stdout.strip() == key
    assert run_cli("pin", "-C", capped_cache).stdout == ""
    assert run_cli("rm", "-C", capped_cache, "jit_mlp", "--yes").returncode == 0
