"""``jaxcache copy``: between any two, and into bundles."""

import itertools
from pathlib import Path

from conftest import RunCli


def test_copy_between_any_two(run_cli: RunCli, corpus: Path, tmp_path: Path) -> None:
    cache = corpus / "0.4.38-cpu-zstd"
    stops = [cache, tmp_path / "a", tmp_path / "b.jxb", tmp_path / "c.jxb", tmp_path / "d"]
    for source, target in itertools.pairwise(stops):
        done = run_cli("copy", source, target)
        assert done.returncode == 0, done.stderr
        assert run_cli("diff", cache, target).returncode == 0
    assert (tmp_path / "b.jxb").read_bytes() == (tmp_path / "c.jxb").read_bytes()
    assert run_cli("copy", tmp_path / "none", tmp_path / "e").returncode == 10
