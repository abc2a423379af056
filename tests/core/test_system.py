"""How many cores a process may use where its control groups have a quota."""

import math
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from processes import sh

from jaxcache.core.system import processor_quota

_V1 = {"cpu.cfs_quota_us": "150000", "cpu.cfs_period_us": "100000"}


_ONE, _NONE = {"cpu.max": "100000 100000"}, {"cpu.max": "max 100000"}
#: The group of a process, what the groups contain, and the quota.
_GROUPS = {
    "container": ("0::/", {"": _ONE}, 1.0),
    "no limit": ("0::/", {"": _NONE}, math.inf),
    "root group": ("0::/", {}, math.inf),
    "limit of a parent": ("0::/a/b", {"a": {"cpu.max": "50000 100000"}, "a/b": _NONE}, 0.5),
    "unreadable": ("0::/a", {"a": {"cpu.max": "no numbers"}}, math.inf),
    "version 1": ("4:memory:/m\n1:cpu,cpuacct:/a", {"cpu/a": _V1}, 1.5),
    "version 1, path of the host": ("2:cpuacct,cpu:/docker/0123", {"cpu": _V1}, 1.5),
    "version 1, no limit": ("1:cpu:/", {"cpu": _V1 | {"cpu.cfs_quota_us": "-1"}}, math.inf),
    "no group for processors": ("3:cpuset:/a", {"cpu/a": _V1, "a": _ONE}, math.inf),
}


@pytest.mark.parametrize(("groups", "files", "quota"), _GROUPS.values(), ids=_GROUPS)
def test_the_quota_is_the_lowest_of_the_groups(
    tmp_path: Path, groups: str, files: dict[str, dict[str, str]], quota: float
) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(groups + "\n")
    for name, texts in files.items():
        directory = tmp_path / "sys" / "fs" / "cgroup" / name
        directory.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (directory / file).write_text(text + "\n")
    assert processor_quota(f"{tmp_path}/") == quota


def test_a_system_without_control_groups_has_no_quota(tmp_path: Path) -> None:
    assert processor_quota(f"{tmp_path}/") == math.inf


@pytest.fixture
def one_core(tmp_path: Path) -> Iterator[Path]:
    """The processes of a control group that may use one processor."""
    for top, limits in (
        ("/sys/fs/cgroup/cpu", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "100000"}),
        ("/sys/fs/cgroup", {"cpu.max": "100000 100000"}),
    ):
        group = Path(top) / f"jaxcache-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            for name, text in limits.items():
                (group / name).write_text(text)
            yield group / "cgroup.procs"
            return
        except OSError:
            continue
        finally:
            with suppress(OSError):
                group.rmdir()
    pytest.skip("this user cannot make a control group with a quota")


def test_a_quota_of_one_processor_counts_as_one_core(one_core: Path) -> None:
    count = "from jaxcache.core.system import available_cores; print(available_cores())"
    join = f"open({str(one_core)!r}, 'w').write('0')"
    done = sh([sys.executable, "-c", f"{join}; {count}"], check=True)
    assert done.stdout == "1\n"
