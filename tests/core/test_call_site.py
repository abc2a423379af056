"""How a program is named, whose a file is, and what a call passes."""

import enum
import functools
import inspect
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from jaxcache.core.call_site import find_call_site, is_library, name_program
from jaxcache.core.sketching import describe_call


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/home/me/train.py", False),
        ("/venv/lib/python3.11/site-packages/flax/a.py", True),
        ("/usr/lib/python3/dist-packages/numpy/a.py", True),
        ("/usr/lib/python3.11/json/decoder.py", True),
        ("/home/me/lib/python3.py", False),
        ("C:\\venv\\Lib\\site-packages\\flax\\a.py", True),
        ("<stdin>", True),
        ("<ipython-input-3-abc>", False),
    ],
)
def test_files_of_libraries_are_told_from_the_users(file: str, expected: bool) -> None:
    assert is_library(file) is expected


@pytest.mark.parametrize(
    ("argv", "module", "notebook", "name", "place"),
    [
        (["train.py", "--x"], None, "", "train.py", "HERE/train.py"),
        (["HERE/train.py"], None, "", "train.py", "HERE/train.py"),
        (["./link.py"], None, "", "./link.py", "HERE/train.py"),
        (["gone.py"], None, "", "gone.py", "gone.py\0HERE"),
        (["-c"], None, "", "-c", "-c\0HERE"),
        ([""], None, "", "-", "-\0HERE"),
        ([], None, "", "-", "-\0HERE"),
        (["BIN/pytest"], None, "", "pytest", "pytest\0HERE"),
        (["/x/pkg/__main__.py"], "pkg.__main__", "", "-m pkg", "-m pkg\0HERE"),
        (["/x/pkg/run.py"], "pkg.run", "", "-m pkg.run", "-m pkg.run\0HERE"),
        (["train.py"], "__mp_main__", "", "train.py", "HERE/train.py"),
        (["/tmp/a.ipynb"], None, "", "a.ipynb", "a.ipynb\0HERE/a.ipynb"),
        (["kernel.py"], None, "/n/b.ipynb", "b.ipynb", "b.ipynb\0/n/b.ipynb"),
    ],
)
def test_a_program_has_a_name_and_a_place(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    argv: list[str],
    module: str | None,
    notebook: str,
    name: str,
    place: str,
) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "link.py").symlink_to("train.py")
    main = ModuleType("__main__")
    main.__spec__ = SimpleNamespace(name=module) if module else None  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setenv("JPY_SESSION_NAME", notebook)
    here = str(tmp_path.resolve())

    def full(text: str) -> str:
        return text.replace("HERE", here).replace("BIN", str(Path(sys.executable).parent))

    assert name_program([full(word) for word in argv], here) == (name, full(place))


def frame(file: str, name: str, call: Callable[[], Any], **values: Any) -> Callable[[], Any]:
    """A function of that name in that file that calls another, with these local variables."""
    space: dict[str, Any] = {"call": call}
    text = f"def {name}({', '.join(values)}):\n    return call()\n"
    exec(compile(text, file, "exec"), space)
    return functools.partial(space[name], **values)


PACKAGES = "/venv/lib/python3.11/site-packages"
USER = ("/home/me/train.py", "main")
LIBRARY = (f"{PACKAGES}/flax/a.py", "apply")
AD = f"{PACKAGES}/jax/_src/interpreters/ad.py"
DISPATCH = f"{PACKAGES}/jax/_src/dispatch.py"


@pytest.mark.parametrize(
    ("frames", "kind", "file"),
    [
        ([USER], "primal", USER[0]),
        ([USER, LIBRARY], "primal", USER[0]),
        ([LIBRARY, (f"{PACKAGES}/optax/a.py", "update")], "primal", f"{PACKAGES}/optax/a.py"),
        ([LIBRARY, (f"{PACKAGES}/jaxlib/a.py", "run")], "primal", LIBRARY[0]),
        ([USER, (AD, "vjp")], "linearize", USER[0]),
        ([USER, (AD, "linearize_jaxpr"), (AD, "backward_pass3")], "backward", USER[0]),
        ([USER, (AD, "backward_pass"), (AD, "jvp")], "backward", USER[0]),
        ([(AD, "vjp"), USER], "primal", USER[0]),
        ([USER, (DISPATCH, "apply_primitive")], "eager", USER[0]),
        ([USER, (AD, "vjp"), (DISPATCH, "apply_primitive")], "eager", USER[0]),
        ([USER, (DISPATCH, "other")], "primal", USER[0]),
    ],
)
def test_a_call_site_is_the_innermost_frame_of_the_users_own(
    frames: list[tuple[str, str]], kind: str, file: str
) -> None:
    """Else of a library, in a thread that the user has not started."""
    call: Callable[[], Any] = functools.partial(find_call_site, {}, {})
    for path, name in reversed(frames):
        call = frame(path, name, call)
    with ThreadPoolExecutor(1) as pool:
        site = pool.submit(call).result()
    assert (site.kind, site.file, site.line) == (kind, file, 2)


def test_a_signature_tells_calls_apart() -> None:
    calls: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({"passed": [1]}, {}),
        ({"static": {"mode": "1"}}, {}),
        ({}, {"arguments": [2]}),
        ({}, {"arg_shardings": ["s", ["cannot be hashed"], "s"]}),
        ({}, {"donated_args": [True]}),
    ]
    signatures = [find_call_site(*call).signature for call in calls]
    assert len({*signatures}) == len(calls)
    assert find_call_site({"passed": [1]}, {"arguments": [2]}).signature == signatures[1]


class Color(enum.Enum):
    RED = 1


class Config(NamedTuple):
    path: str
    size: int


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "None"),
        (0.5, "0.5"),
        ("x" * 99, "'" + "x" * 63),
        ((1, ("b", True)), "(1, ('b', True))"),
        ((0,) * 8, "(0, 0, 0, 0, 0, 0, 0, 0)"),
        ((0,) * 9, "tuple"),
        ([1], "list"),
        (Color.RED, "Color.RED"),
        (Config("/secret", 3), "Config(path=#f0dcd960, size=3)"),
        (Config("/secret", 10**600), f"Config(path=#f0dcd960, size=1{'0' * 63})"),
    ],
)
def test_a_static_value_is_shown_where_it_is_small_and_pythons_own(
    value: object, shown: str
) -> None:
    """The texts of an object may be secret. What JAX calls is looked up by its name."""
    info = SimpleNamespace(
        fun_signature=inspect.signature(lambda x, value, mode=None: None),
        static_argnums=(1, -1, 7),
        static_argnames=("mode", "other"),
    )
    aval = SimpleNamespace(str_short=lambda short_dtypes: "f32[8]", weak_type=True)
    names = SimpleNamespace(debug_info=SimpleNamespace(arg_names=["x"]))
    jaxpr = SimpleNamespace(in_avals=[aval], jaxpr=names)
    inner = frame("/jax/_src/pjit.py", "_resolve_and_lower", describe_call, jaxpr=jaxpr)
    called = {"args": (0, value), "kwargs": {"mode": 4}, "jit_info": info}
    outer = frame("/jax/_src/pjit.py", "cache_miss", inner, **called)
    static = {"value": shown, "-1": shown, "mode": "4"}
    assert outer() == {"static": static, "passed": [["x", "f32[8]", True]]}
    assert frame("/home/me/train.py", "cache_miss", describe_call, **called)() == {}
