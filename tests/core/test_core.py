"""``jaxcache.core`` runs where jaxcache is not installed: by path, and on the standard library."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from conftest import REPOSITORY
from processes import sh

MODULES = sorted(p.stem for p in (REPOSITORY / "jaxcache" / "core").glob("[!_]*.py"))
CODE = """
import importlib, importlib.util, json, sys
spec = importlib.util.spec_from_file_location("hook", sys.argv[1] + "/injected/hook.py")
hook = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hook)
hook.make_private_package()
for name in sys.argv[2:]:
    importlib.import_module("_jaxcache.core." + name)
print(json.dumps(sorted({n.partition(".")[0] for n in sys.modules})))
"""


def _pythons() -> list[str]:
    old = shutil.which("python3.10")
    if old and subprocess.run([old, "-c", ""], capture_output=True, check=False).returncode:
        old = None
    return [sys.executable, *([old] if old else [])]


@pytest.mark.parametrize("python", _pythons(), ids=os.path.basename)
def test_core_needs_the_standard_library_alone(python: str) -> None:
    done = sh(
        [python, "-I", "-S", "-W", "error", "-c", CODE, str(REPOSITORY / "jaxcache"), *MODULES]
    )
    assert done.stderr == ""
    loaded = set(json.loads(done.stdout))
    assert "_jaxcache" in loaded
    assert "jaxcache" not in loaded
    assert {n for n in loaded if not n.startswith("_")} <= sys.stdlib_module_names
