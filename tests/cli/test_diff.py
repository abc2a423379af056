"""``jaxcache diff``."""

import json
import shutil
from pathlib import Path

from conftest import RunCli
from ways import names

from jaxcache.cache.ledger.record import COMPILE, Event
from jaxcache.cache.ledger.write import append
from jaxcache.store import open_store


def test_compile_seconds_are_those_of_ls(run_cli: RunCli, corpus: Path, tmp_path: Path) -> None:
    """The ledger has them exactly; it makes no difference between two copies of an entry."""
    cache = Path(shutil.copytree(corpus / "0.4.38-cpu-zstd", tmp_path / "cache"))
    twin = Path(shutil.copytree(cache, tmp_path / "twin"))
    keys = sorted(n.removesuffix("-cache") for n in names(cache))
    events = [Event(key, COMPILE, 1, {"compile_seconds": n + 0.25}) for n, key in enumerate(keys)]
    assert append(open_store(str(cache)), events)
    assert run_cli("export", tmp_path / "x.jxb", "-C", cache).returncode == 0
    (tmp_path / "none").mkdir()
    listed = json.loads(run_cli("ls", "-C", cache, "--json").stdout)["entries"]
    wanted = {e["key"]: e["compile_seconds"] for e in listed}
    assert wanted == {key: n + 0.25 for n, key in enumerate(keys)}
    for side in (cache, tmp_path / "x.jxb"):
        document = json.loads(run_cli("diff", side, tmp_path / "none", "--json").stdout)
        assert {e["key"]: e["compile_seconds"] for e in document["only_left"]} == wanted
        assert document["left"]["only_compile_seconds"] == sum(wanted.values())
        assert run_cli("diff", side, twin).returncode == 0
    shutil.copy(twin / f"{keys[0]}-cache", twin / f"{keys[1]}-cache")
    done = run_cli("diff", cache, twin)
    said = f"{len(keys) - 1} the same, 1 with keys that hit in both differ (1 in their executables)"
    assert done.stderr.strip() == said, done
