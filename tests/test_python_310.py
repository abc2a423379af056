"""Code that runs in the user's Python keeps to Python 3.10, and to the standard library and jax."""

import ast
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import REPOSITORY

#: Names of the standard library that came with 3.11 to 3.14 ("What's New" of each), by module.
NEWER = {
    "tomllib": {"*"},
    "compression": {"*"},
    "annotationlib": {"*"},
    "asyncio": {"timeout", "timeout_at", "TaskGroup", "Runner", "Barrier"},
    "contextlib": {"chdir"},
    "copy": {"replace"},
    "datetime": {"UTC"},
    "enum": {"StrEnum", "ReprEnum", "EnumCheck", "member", "nonmember", "verify"},
    "hashlib": {"file_digest"},
    "inspect": {"getmembers_static", "markcoroutinefunction"},
    "itertools": {"batched"},
    "logging": {"getLevelNamesMapping"},
    "math": {"cbrt", "exp2", "sumprod", "fma"},
    "os": {"process_cpu_count", "listdrives"},
    "sys": {"exception", "monitoring", "activate_stack_trampoline"},
    "threading": {"setprofile_all_threads", "settrace_all_threads"},
    "typing": {"Self", "Never", "LiteralString", "Required", "NotRequired", "Unpack", "override"}
    | {"assert_never", "assert_type", "reveal_type", "dataclass_transform", "TypeVarTuple"},
    "warnings": {"deprecated"},
}
BUILTIN = {"ExceptionGroup", "BaseExceptionGroup", "PythonFinalizationError"}
METHODS = {"add_note", "uncancel"}

FILES = sorted(
    p
    for part in ("core", "injected", "live")
    for p in (REPOSITORY / "jaxcache" / part).rglob("*.py")
)


def newer_names(tree: ast.AST) -> Iterator[str]:
    """Yield what a file uses that Python 3.10 lacks, but for imports that are only tried."""
    tried = {n for t in ast.walk(tree) if isinstance(t, ast.Try) for n in t.body}
    for node in ast.walk(tree):
        if node in tried:
            continue
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if "*" in NEWER.get(a.name.split(".")[0], ()))
        elif isinstance(node, ast.ImportFrom) and not node.level:
            newer = NEWER.get(str(node.module).split(".")[0], set())
            yield from (a.name for a in node.names if "*" in newer or a.name in newer)
        elif isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if node.attr in NEWER.get(owner, ()) or node.attr in METHODS:
                yield f"{owner}.{node.attr}"
        elif isinstance(node, ast.Name) and node.id in BUILTIN:
            yield node.id


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(REPOSITORY / "jaxcache")))
def test_what_runs_in_the_users_python_keeps_to_310(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"), feature_version=(3, 10))
    assert list(newer_names(tree)) == []


def test_newer_names_are_seen() -> None:
    text = "from enum import StrEnum\nimport tomllib, datetime\ndatetime.UTC\nExceptionGroup\n"
    assert list(newer_names(ast.parse(text))) == [
        "StrEnum",
        "tomllib",
        "datetime.UTC",
        "ExceptionGroup",
    ]
    with pytest.raises(SyntaxError):
        ast.parse("try: pass\nexcept* OSError: pass\n", feature_version=(3, 10))


def test_python_310_itself_compiles_it(tmp_path: Path) -> None:
    python = shutil.which("python3.10")
    if python is None or subprocess.run([python, "-c", ""], check=False).returncode:
        pytest.skip("Python not found: 3.10 here")
    code = "import sys\nfor p in sys.argv[1:]: compile(open(p, encoding='utf-8').read(), p, 'exec')"
    done = subprocess.run(
        [python, "-W", "error", "-c", code, *map(str, FILES)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
