"""The programs, the changes to them, and what is right to say of each.

A change is the edit that a user would make. This list was committed before the code that explains
it; where a change breaks ``explain``, the change stays and the code is mended.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = Path(__file__).with_name("programs")
MAIN, PARTS = "main.py", "parts.py"
FLAG = "--xla_cpu_enable_fast_math=true"
CODE = frozenset({"code", "constant"})
#: What is right of an edit that is no other value.
OPERATION = frozenset({"code"})
#: What is right of a structure that has other members: of a function that takes it, and of one
#: that makes it.
STRUCTURE = frozenset({"argument-structure", "argument-shape"}) | CODE

#: A static value is seen as such, or where the program uses it.
STATIC = frozenset({"static-argument"}) | CODE


@dataclass(frozen=True)
class Edit:
    """Replace a text that occurs once in a file of a program; without ``before``, make the file."""

    file: str
    before: str
    after: str


@dataclass(frozen=True)
class Change:
    """One change to a program, and what is right to say of it."""

    kind: str
    causes: frozenset[str] = frozenset()
    """Causes that are right where a module misses by this change; empty where it changes no key."""
    edits: tuple[Edit, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()
    """Files and directories that get another name, before the edits."""
    env: Mapping[str, str] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    other_jax: bool = False
    """The change is another version of JAX."""
    other_directory: bool = False
    """The change is a cache that was copied to another directory."""
    with_codec: bool = False
    """The change is that zstandard gets installed."""
    old: str = ""
    """A pattern that occurs in the value before the change, where one is printed."""
    new: str = ""
    """The same of the value after it."""
    is_unstable: bool = False
    """What changes is another one in each process."""
    can_be_first: bool = False
    """It is true that the function was not compiled before, too."""
    is_anywhere: bool = False
    """It changes every function that uses a structure: any line of the program is right."""

    def flags(self) -> set[str]:
        """Return the names of XLA flags that the change sets."""
        texts = (*self.env.values(), *(edit.after for edit in self.edits))
        return {name for text in texts for name in re.findall(r"xla_\w+", text)}

    def variables(self) -> set[str]:
        """Return the variables of the environment that can undo the change."""
        if self.other_directory:
            return {"JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"}
        return set(self.env)

    def settings(self) -> set[str]:
        """Return the names of settings of JAX that the change sets."""
        names = {name.lower() for name in self.env if name.startswith("JAX_")}
        for edit in self.edits:
            names |= set(re.findall(r'"(jax_\w+)"', edit.after))
        return names


#: What a program needs of its environment; ``{program}`` is its directory.
BASE_ENV: dict[str, dict[str, str]] = {
    "mesh": {"JAX_NUM_CPU_DEVICES": "4"},
    "tables": {"PYTHONPATH": "{program}/lib"},
}
#: One edit of the code for each kind and program.
CODE_EDITS: dict[str, dict[str, Edit]] = {
    "perceptron": {
        "function": Edit(
            MAIN,
            "    return dense(params[-1], x)\n",
            "    x = x - x.mean(axis=-1, keepdims=True)\n    return dense(params[-1], x)\n",
        ),
        "helper": Edit(
            PARTS, "jnp.mean((prediction - target) ** 2)", "jnp.mean(jnp.abs(prediction - target))"
        ),
        "constant": Edit(MAIN, "RATE = 0.1", "RATE = 0.2"),
        "activation": Edit(MAIN, "jax.nn.gelu", "jax.nn.relu"),
        "layers": Edit(MAIN, "LAYERS = 2", "LAYERS = 3"),
        "optimizer": Edit(MAIN, "p - RATE * g", "p - RATE * jnp.sign(g)"),
    },
    "transformer": {
        "function": Edit(
            MAIN,
            "    return normalize(x) @ params",
            "    x = jnp.clip(x, -5.0, 5.0)\n    return normalize(x) @ params",
        ),
        "helper": Edit(
            PARTS,
            "    mixed = jnp.einsum",
            "    scores = 30.0 * jnp.tanh(scores / 30.0)\n    mixed = jnp.einsum",
        ),
        "constant": Edit(PARTS, "+ 1e-6)", "+ 1e-5)"),
        "activation": Edit(MAIN, "jax.nn.gelu", "jax.nn.relu"),
        "layers": Edit(MAIN, "LAYERS = 2", "LAYERS = 3"),
        "optimizer": Edit(MAIN, "p - 0.1 * g", "p - 0.1 * jnp.sign(g)"),
    },
    "recurrent": {
        "function": Edit(
            MAIN, "inputs = inputs * 0.5", "inputs = inputs * 0.5 + jnp.flip(inputs, 0)"
        ),
        "helper": Edit(
            PARTS,
            "x @ weights[0] + state @ weights[1]",
            "x @ weights[0] + state @ weights[1] + state",
        ),
        "constant": Edit(MAIN, "inputs * 0.5", "inputs * 0.25"),
        "activation": Edit(PARTS, "jnp.tanh(", "jnp.sin("),
        "layers": Edit(MAIN, "LAYERS = 2", "LAYERS = 3"),
    },
    "convolution": {
        "function": Edit(MAIN, "images.mean(axis=(1, 2))", "images.max(axis=(1, 2))"),
        "helper": Edit(PARTS, "-jax.numpy.inf, jax.lax.max", "jax.numpy.inf, jax.lax.min"),
        "constant": Edit(MAIN, "1.0 + forward", "2.0 + forward"),
        "activation": Edit(MAIN, "jax.nn.relu", "jax.nn.sigmoid"),
        "layers": Edit(MAIN, "LAYERS = 2", "LAYERS = 3"),
        "optimizer": Edit(MAIN, "p - RATE * g", "p - RATE * jnp.sign(g)"),
    },
    "planets": {
        "function": Edit(MAIN, "return x + DT * v, v", "return x + DT * v, 0.99 * v"),
        "helper": Edit(
            PARTS,
            "    offset = b - a\n",
            "    offset = b - a\n    offset = jnp.clip(offset, -1.0, 1.0)\n",
        ),
        "constant": Edit(MAIN, "DT = 0.01", "DT = 0.02"),
        "activation": Edit(PARTS, "** 1.5", "** 0.5"),
    },
    "sampler": {
        "function": Edit(MAIN, "< ratio\n", "< jnp.sqrt(ratio)\n"),
        "helper": Edit(PARTS, "jnp.sum(x * x", "jnp.sum(jnp.abs(x)"),
        "constant": Edit(MAIN, "SCALE = 0.5", "SCALE = 0.25"),
        "activation": Edit(MAIN, "jnp.tanh(x)", "jnp.sin(x)"),
        "optimizer": Edit(MAIN, "jax.random.normal(", "jax.random.laplace("),
    },
    "flax_classifier": {
        "function": Edit(
            MAIN,
            "        x = nn.gelu(x)\n",
            "        x = nn.gelu(x)\n        x = x / (1.0 + x * x)\n",
        ),
        "helper": Edit(PARTS, "x + nn.relu(hidden)", "x + 0.5 * nn.relu(hidden)"),
        "constant": Edit(MAIN, "RATE = 1e-3", "RATE = 2e-3"),
        "activation": Edit(MAIN, "nn.gelu", "nn.silu"),
        "layers": Edit(MAIN, "LAYERS = 2", "LAYERS = 3"),
        "optimizer": Edit(MAIN, "optax.adam(RATE)", "optax.lion(RATE)"),
    },
    "optax_regression": {
        "function": Edit(MAIN, 'jnp.sum(params["w"] ** 2)', 'jnp.sum(jnp.abs(params["w"]))'),
        "helper": Edit(PARTS, "return jnp.sin(x)", "return jnp.sin(x) + x"),
        "constant": Edit(MAIN, "+ 1e-4 *", "+ 1e-3 *"),
        "activation": Edit(PARTS, "jnp.sin(x)", "jnp.cos(x)"),
        "optimizer": Edit(MAIN, "optax.sgd(RATE)", "optax.adam(RATE)"),
    },
    "equinox_network": {
        "function": Edit(
            MAIN,
            "        return self.output(x)\n",
            "        x = x * x\n        return self.output(x)\n",
        ),
        "helper": Edit(PARTS, "x + jax.nn.tanh(hidden)", "x - jax.nn.tanh(hidden)"),
        "constant": Edit(MAIN, "RATE = 0.05", "RATE = 0.01"),
        "activation": Edit(MAIN, "jax.nn.softplus", "jax.nn.sigmoid"),
        "layers": Edit(MAIN, "LAYERS = 2", "LAYERS = 3"),
        "optimizer": Edit(MAIN, "p - RATE * g", "p - RATE * jnp.sign(g)"),
    },
    "diffrax_oscillator": {
        "function": Edit(
            MAIN,
            "    position, speed = state\n",
            "    position, speed = state\n    speed = jnp.tanh(speed)\n",
        ),
        "helper": Edit(PARTS, "-stiffness * position", "-stiffness * position**3"),
        "constant": Edit(MAIN, "DAMPING = 0.1", "DAMPING = 0.3"),
        "activation": Edit(MAIN, "jnp.sqrt(jnp.sum", "jnp.log(jnp.sum"),
        "optimizer": Edit(MAIN, "diffrax.Heun()", "diffrax.Dopri5()"),
    },
    "numpyro_regression": {
        "function": Edit(MAIN, "+ intercept\n", "+ intercept * intercept\n"),
        "helper": Edit(PARTS, "x - x.mean()", "x - x.max()"),
        "constant": Edit(MAIN, "dist.Exponential(1.0)", "dist.Exponential(3.0)"),
        "activation": Edit(MAIN, "jnp.tanh(slope", "jnp.sin(slope"),
        "optimizer": Edit(MAIN, "optim.SGD(RATE)", "optim.Adam(RATE)"),
    },
    "haiku_network": {
        "function": Edit(MAIN, "    return head(x)\n", "    x = x * 3.0\n    return head(x)\n"),
        "helper": Edit(PARTS, "jax.nn.tanh(hk.Linear(1)(x))", "jax.nn.tanh(hk.Linear(1)(x)) ** 3"),
        "constant": Edit(MAIN, "RATE = 0.1", "RATE = 0.3"),
        "activation": Edit(MAIN, "jax.nn.relu", "jax.nn.elu"),
        "layers": Edit(MAIN, "LAYERS = 2", "LAYERS = 3"),
        "optimizer": Edit(MAIN, "p - RATE * g", "p - RATE * jnp.sign(g)"),
    },
}
#: A setting of JAX by program.
SETTINGS = {
    "perceptron": {"JAX_DEFAULT_MATMUL_PRECISION": "float32"},
    "transformer": {"JAX_DEFAULT_MATMUL_PRECISION": "highest"},
    "recurrent": {"JAX_ENABLE_X64": "1"},
    "convolution": {"JAX_DEFAULT_MATMUL_PRECISION": "highest"},
    "planets": {"JAX_ENABLE_X64": "1"},
    "sampler": {"JAX_THREEFRY_PARTITIONABLE": "0"},
    "flax_classifier": {"JAX_DEFAULT_PRNG_IMPL": "rbg"},
    "optax_regression": {"JAX_DEFAULT_MATMUL_PRECISION": "highest"},
    "equinox_network": {"JAX_THREEFRY_PARTITIONABLE": "0"},
    "diffrax_oscillator": {"JAX_ENABLE_X64": "1"},
    "numpyro_regression": {"JAX_DEFAULT_PRNG_IMPL": "rbg"},
    "haiku_network": {"JAX_DEFAULT_MATMUL_PRECISION": "highest"},
    "shapes": {"JAX_DEFAULT_MATMUL_PRECISION": "highest"},
    "decorated": {"JAX_DEFAULT_MATMUL_PRECISION": "float32"},
    "mesh": {"JAX_DEFAULT_MATMUL_PRECISION": "highest"},
    "tables": {"JAX_ENABLE_X64": "1"},
    "twins": {"JAX_ENABLE_X64": "1"},
    "eager": {"JAX_DEFAULT_MATMUL_PRECISION": "highest"},
}
_BATCHES = {"transformer": 2, "recurrent": 4, "convolution": 2, "planets": 6, "sampler": 16}
_BATCHES |= {"diffrax_oscillator": 3}
_DTYPES = {"transformer": ("np.int32", "np.uint8")}
_STEPS = {"transformer": (1, 2), "perceptron": (2, 3), "recurrent": (1, 2), "convolution": (1, 2)}
_STEPS |= {"planets": (10, 20), "sampler": (2, 3), "optax_regression": (2, 3)}
_STEPS |= dict.fromkeys(("shapes", "mesh", "tables", "twins", "eager"), (2, 3))
_STEPS |= {"diffrax_oscillator": (64, 128)}

_JIT = "@functools.partial(jax.jit, static_argnames="
_OPTIONS = 'compiler_options={"xla_llvm_disable_expensive_passes": True}'
#: The argument that is donated.
_DONATED = {"sampler": 1, "numpyro_regression": 1}
_NUMPY, _FUNCTOOLS = "import numpy as np\n", "import functools\n"
_PRECISION = 'jax.config.update("jax_default_matmul_precision", "highest")'


def _edits(*triples: str) -> tuple[Edit, ...]:
    """Return edits of the files, texts before and texts after that are given in turn."""
    return tuple(Edit(*triples[n : n + 3]) for n in range(0, len(triples), 3))


#: Changes of kinds that only some programs have.
OWN_CHANGES: dict[str, tuple[Change, ...]] = {
    "shapes": (
        Change("operation", OPERATION, _edits(MAIN, "jnp.tanh(rows)", "jnp.sin(rows)")),
        Change("helper", CODE, _edits(PARTS, "x - x.mean()", "x - x.max()")),
        Change(
            "constant",
            CODE,
            _edits(MAIN, "(1.0 - rate)", "(0.5 - rate)"),
            old=r"\b1(\.0*)?\b",
            new=r"0?\.5",
        ),
        Change(
            "dictionary key",
            OPERATION | {"argument-structure", "name"},
            _edits(
                MAIN, 'bias = state["bias"]', 'bias = state["offset"]',
                MAIN, '"bias": bias}', '"offset": bias}',
                MAIN, '"bias": np', '"offset": np',
            ),
        ),
        Change("result name", OPERATION | {"name"}, _edits(MAIN, '{"score":', '{"total":')),
        Change(
            "arguments swapped",
            OPERATION | {"argument-structure", "operation-order"},
            _edits(
                MAIN, "def combine(rows, columns,", "def combine(columns, rows,",
                MAIN, "combine(rows, columns, steps=2)", "combine(columns, rows, steps=2)",
            ),
        ),
        Change(
            "unused argument",
            OPERATION | {"argument-structure"},
            _edits(
                MAIN, "def update(state, rate):", "def update(state, rate, name=0):",
                MAIN, "DTYPE(0.1))", "DTYPE(0.1), DTYPE(3))",
            ),
        ),
        Change(
            "function renamed",
            OPERATION | {"name"},
            _edits(
                MAIN, "def combine(", "def blend(",
                MAIN, "len(combine(", "len(blend(",
            ),
            can_be_first=True,
        ),
        Change(
            "moved to another file",
            edits=_edits(
                PARTS, '"""Statistics."""\n\n\ndef center(x):\n    """Subtract the mean."""\n'
                "    return x - x.mean()\n", '"""Statistics."""\n\nfrom more import center\n',
                "more.py", "", '"""More."""\n\n\ndef center(x):\n    """Subtract the mean."""\n'
                "    return x - x.mean()\n",
            ),
        ),
        Change(
            "lines swapped",
            OPERATION | {"operation-order"},
            _edits(
                MAIN, "    low = jnp.tanh(rows)\n    high = jnp.exp(columns)\n",
                "    high = jnp.exp(columns)\n    low = jnp.tanh(rows)\n",
            ),
        ),
        Change(
            "another shape",
            frozenset({"argument-shape", "not-cached-before"}),
            _edits(MAIN, "SIZES = (4, 6)", "SIZES = (4, 6, 12)"),
            can_be_first=True,
        ),
        Change(
            "weak type",
            OPERATION | {"argument-dtype"},
            _edits(MAIN, "jnp.bfloat16), 2.0)", "jnp.bfloat16), np.float32(2.0))"),
        ),
        Change(
            "precision",
            OPERATION,
            _edits(MAIN, "low @ high", 'jnp.dot(low, high, precision="highest")'),
        ),
    ),
    "decorated": (
        Change("operation", OPERATION, _edits(PARTS, "jnp.tanh(x @", "jnp.sin(x @")),
        Change(
            "constant",
            CODE,
            _edits(MAIN, "params - 0.1 *", "params - 0.3 *"),
            old=r"0?\.1",
            new=r"0?\.3",
        ),
        Change(
            "checkpoint",
            OPERATION,
            _edits(MAIN, "block(weights, x), None", "jax.checkpoint(block)(weights, x), None"),
        ),
        Change(
            "custom_vjp",
            OPERATION,
            _edits(
                PARTS, "import jax.numpy", "import jax\nimport jax.numpy",
                PARTS, "def soft(x):", "@jax.custom_vjp\ndef soft(x):",
                PARTS, "    return x / (1.0 + x * x)\n", "    return x / (1.0 + x * x)\n\n\n"
                "soft.defvjp(lambda x: (soft(x), x), lambda x, g: (g / (1.0 + x * x),))\n",
            ),
        ),
        Change(
            "static argument",
            STATIC,
            _edits(MAIN, "config=Config(depth=3)", "config=Config(depth=3, gain=0.25)"),
            old=r"0\.5",
            new=r"0\.25",
            is_anywhere=True,
        ),
        Change("unroll", OPERATION, _edits(MAIN, "[: config.depth])", "[: config.depth], unroll=3)")),
        Change(
            "function renamed",
            OPERATION | {"name"},
            _edits(MAIN, "def measure(", "def norm(", MAIN, "print(measure(", "print(norm("),
            can_be_first=True,
        ),
        Change("helper renamed", edits=_edits(
            MAIN, "import block, soft", "import block, limit",
            MAIN, "soft(x) * config", "limit(x) * config",
            PARTS, "def soft(", "def limit(",
        )),
    ),
    "mesh": (
        Change("operation", OPERATION, _edits(PARTS, "jax.nn.relu(x)", "jax.nn.silu(x)")),
        Change("constant", CODE, _edits(PARTS, "* 0.5", "* 0.7"), old=r"0?\.5", new=r"0?\.(7|69)"),
        Change(
            "mesh",
            OPERATION | {"argument-sharding"},
            _edits(MAIN, "reshape(4, 1)", "reshape(2, 2)"),
        ),
        Change(
            "smaller mesh",
            OPERATION | {"argument-sharding", "device"},
            _edits(MAIN, "jax.devices()[:4]).reshape(4, 1)", "jax.devices()[:2]).reshape(2, 1)"),
        ),
        Change(
            "sharding",
            OPERATION | {"argument-sharding"},
            _edits(MAIN, 'PartitionSpec("x", "y")', 'PartitionSpec("y", "x")'),
        ),
    ),
    "tables": (
        Change("operation", OPERATION, _edits(MAIN, "jnp.cos(x) + 2.0", "jnp.sin(x) + 2.0")),
        Change(
            "constant",
            CODE,
            _edits(MAIN, "jnp.cos(x) + 2.0", "jnp.cos(x) + 4.0"),
            old=r"\b2(\.0*)?\b",
            new=r"\b4(\.0*)?\b",
        ),
        Change("array element", CODE, _edits(MAIN, "0.2, 0.4,", "0.2, 0.5,")),
        Change(
            "element of a large array",
            CODE,
            _edits(MAIN, "2000, dtype=np.float32)\n", "2000, dtype=np.float32)\nCURVE[7] = 0.5\n"),
        ),
        Change(
            "library upgraded",
            OPERATION,
            (Edit("lib/smallmath/__init__.py", "jnp.roll(x, shift)", "jnp.roll(x, -shift)"),
             Edit("lib/smallmath-1.1.dist-info/METADATA", "Version: 1.0", "Version: 1.1")),
            renames=(("lib/smallmath-1.0.dist-info", "lib/smallmath-1.1.dist-info"),),
        ),
        Change(
            "variable of the program",
            CODE,
            env={"APP_GAIN": "2.5"},
            old=r"1\.5",
            new=r"2\.5",
        ),
        Change(
            "new name in each process",
            OPERATION | {"name"},
            _edits(
                MAIN, "x = np.ones(BATCH, DTYPE)\n",
                'x = np.ones(BATCH, DTYPE)\nstamp.__name__ = f"stamp_{id(object()):x}_{os.getpid()}"\n',
            ),
            is_unstable=True,
            can_be_first=True,
        ),
        Change(
            "new constant in each process",
            CODE,
            _edits(MAIN, "jnp.cos(x) + 2.0", "jnp.cos(x) + float(os.getpid())"),
            is_unstable=True,
        ),
    ),
    "twins": (
        Change("helper", CODE, _edits(PARTS, "0.25 * x", "0.25 * x * x")),
        Change(
            "one of a factory",
            CODE,
            _edits(MAIN, "(1.5, 2.5, 3.5, 4.5)", "(1.5, 2.5, 3.75, 4.5)"),
            old=r"3\.5",
            new=r"3\.75",
        ),
        Change(
            "one more of a factory",
            CODE | {"not-cached-before"},
            _edits(MAIN, "(1.5, 2.5, 3.5, 4.5)", "(0.5, 1.5, 2.5, 3.5, 4.5)"),
            can_be_first=True,
        ),
        Change(
            "lambda",
            CODE,
            _edits(MAIN, "jnp.cos(x) * 3.0", "jnp.cos(x) * 5.0"),
            old=r"\b3(\.0*)?\b",
            new=r"\b5(\.0*)?\b",
        ),
        Change("operation", OPERATION, _edits(MAIN, "jnp.sin(x) * 2.0", "jnp.tan(x) * 2.0")),
        Change(
            "calls swapped",
            edits=_edits(MAIN, "double(x).shape, triple(x).shape", "triple(x).shape, double(x).shape"),
        ),
    ),
    "eager": (
        Change("operation", OPERATION, _edits(MAIN, "jnp.sqrt(advance", "jnp.exp(advance")),
        Change("helper", CODE, _edits(PARTS, "(x - 1.0) ** 2", "jnp.abs(x - 1.0)")),
        Change(
            "constant",
            CODE,
            _edits(MAIN, "x - 0.1 *", "x - 0.3 *"),
            old=r"0?\.1",
            new=r"0?\.3",
        ),
    ),
}  # fmt: skip
ALL_PROGRAMS = (*CODE_EDITS, *OWN_CHANGES)
#: An edit for a run in between, which is none of those above.
_BETWEEN = {
    "perceptron": Edit(MAIN, "argmax(forward", "argmin(forward"),
    "transformer": Edit(MAIN, "tokens)[:, -1]", "tokens)[:, 0]"),
    "recurrent": Edit(MAIN, "jnp.sum(jax.nn.relu", "jnp.sum(jax.nn.silu"),
    "shapes": Edit(MAIN, "jnp.exp(columns)", "jnp.log1p(columns)"),
    "decorated": Edit(MAIN, "jnp.sqrt(jnp.sum(params", "jnp.log(jnp.sum(params"),
    "mesh": Edit(MAIN, "jnp.abs(rows)", "jnp.square(rows)"),
    "tables": Edit(MAIN, "jnp.tanh(x * GAIN)", "jnp.sinh(x * GAIN)"),
    "twins": Edit(MAIN, "jnp.cos(x) * 3.0", "jnp.cosh(x) * 3.0"),
    "eager": Edit(MAIN, "jnp.sqrt(advance", "jnp.cbrt(advance"),
}


def between_of(program: str, kinds: tuple[str, ...]) -> Change:
    """Return an edit for a run in between, which is none of some kinds."""
    edits = {"between": _BETWEEN[program]} if program in _BETWEEN else {}
    edits |= {k: e for k, e in CODE_EDITS.get(program, {}).items() if k not in kinds}
    kind, edit = next(iter(edits.items()))
    return Change(kind, CODE, (edit,))


def changes_of(program: str) -> tuple[Change, ...]:
    """Return the changes of one program, each of another kind."""
    found = {change.kind: change for change in _every_change(program)}
    return tuple(found.values())


def find_change(program: str, kind: str) -> Change:
    """Return the change of one kind."""
    return next(change for change in changes_of(program) if change.kind == kind)


def _every_change(program: str) -> Iterator[Change]:
    """Yield the changes of one program, its own last: these replace others of their kind."""
    yield Change("nothing")
    for kind, edit in CODE_EDITS.get(program, {}).items():
        is_anywhere = kind in ("layers", "optimizer")
        causes = STRUCTURE if is_anywhere else CODE
        yield Change(kind, causes, (edit,), is_anywhere=is_anywhere)
    yield from _argument_changes(program)
    yield from _jit_changes(program)
    yield from _moves()
    yield from _environment_changes(program)
    yield from OWN_CHANGES.get(program, ())


def _argument_changes(program: str) -> Iterator[Change]:
    batch = _BATCHES.get(program, 8)
    shape = Edit(MAIN, f"BATCH = {batch} *", f"BATCH = {3 * batch} *")
    causes = frozenset({"argument-shape"})
    yield Change("shape", causes, (shape,))
    yield Change("batch by argument", causes, argv=("--large",))
    before, after = _DTYPES.get(program, ("np.float32", "np.float16"))
    dtype = Edit(MAIN, f"DTYPE = {before}\n", f"DTYPE = {after}\n")
    patterns = [name.removeprefix("np.") for name in (before, after)]
    yield Change("dtype", frozenset({"argument-dtype"}), (dtype,), old=patterns[0], new=patterns[1])
    if program != "decorated":
        name = {"recurrent": "unroll"}.get(program, "steps")
        old, new = _STEPS.get(program, (1, 2))
        static = Edit(MAIN, f"{name}={old})", f"{name}={new})")
        patterns = [rf"\b{value}\b" for value in (old, new)]
        yield Change(
            "static argument", STATIC, (static,), old=patterns[0], new=patterns[1], is_anywhere=True
        )


def _jit_changes(program: str) -> Iterator[Change]:
    name = {"recurrent": "unroll", "decorated": "config"}.get(program, "steps")
    line = f'{_JIT}"{name}")'
    donated = _DONATED.get(program, 0)
    donation = Edit(MAIN, line, f"{line[:-1]}, donate_argnums={donated})")
    yield Change("donation", frozenset({"donation"}), (donation,))
    option = Edit(MAIN, line, f"{line[:-1]}, {_OPTIONS})")
    yield Change("jit option", frozenset({"flag"}), (option,))


def _moves() -> Iterator[Change]:
    """Yield changes that change no key."""
    yield Change("blank lines above", edits=(Edit(MAIN, _FUNCTOOLS, f"\n\n\n{_FUNCTOOLS}"),))
    renamed = (Edit(MAIN, "from parts import", "from pieces import"),)
    yield Change("file renamed", edits=renamed, renames=((PARTS, "pieces.py"),))
    yield Change("script renamed", renames=((MAIN, "start.py"),), can_be_first=True)


def _environment_changes(program: str) -> Iterator[Change]:
    yield Change("XLA flag", frozenset({"flag"}), env={"XLA_FLAGS": FLAG})
    config = frozenset({"config"})
    yield Change("setting of the environment", config, env=SETTINGS[program])
    in_code = Edit(MAIN, _NUMPY, f"{_NUMPY}\n{_PRECISION}\n")
    yield Change("setting in code", config, (in_code,))
    versions = frozenset({"jax-version", "jaxlib-version"})
    yield Change("JAX version", versions, other_jax=True)
    device = frozenset({"device"})
    if program == "mesh":
        yield Change("device count", device, env={"JAX_NUM_CPU_DEVICES": "8"})
    else:
        count = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
        yield Change("device count", device | {"flag"}, env=count)
        count = {"JAX_NUM_CPU_DEVICES": "4"}
        yield Change("device count by variable", device | {"config"}, env=count)
    yield Change("directory", frozenset({"path"}), other_directory=True)
    order = frozenset({"operation-order"})
    yield Change("hash seed", order, env={"PYTHONHASHSEED": "1"})
    yield Change("zstandard", frozenset({"codec"}), with_codec=True)


def source_of(program: str) -> dict[str, str]:
    """Return the files of a program by name, with a size of the batch that arguments can change."""
    files = {}
    root = PROGRAMS / program
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            files[str(path.relative_to(root))] = path.read_text()
    pattern = re.compile(r"^BATCH = (\d+)$", re.M)
    factor = '{"--large": 2, "--larger": 4}.get(__import__("sys").argv[-1], 1)'
    files[MAIN] = pattern.sub(rf"BATCH = \1 * {factor}", files[MAIN])
    return files


def apply(files: Mapping[str, str], changes: tuple[Change, ...]) -> dict[str, str]:
    """Return the files of a program after some changes.

    Raises:
        ValueError: an edit does not fit, because another one changed the same text.
    """
    changed = dict(files)
    for change in changes:
        for before, after in change.renames:
            for name in [n for n in changed if n == before or n.startswith(f"{before}/")]:
                changed[after + name.removeprefix(before)] = changed.pop(name)
    script = script_of(changes)
    for change in changes:
        for edit in change.edits:
            name = script if edit.file == MAIN else edit.file
            if edit.file == PARTS and PARTS not in changed:
                name = "pieces.py"
            text = changed.get(name, "")
            if edit.before and text.count(edit.before) != 1:
                message = f"{name} holds {edit.before!r} {text.count(edit.before)} times"
                raise ValueError(message)
            changed[name] = text.replace(edit.before, edit.after) if edit.before else edit.after
    return changed


def script_of(changes: tuple[Change, ...]) -> str:
    """Return the name of the script after some changes."""
    return next((a for c in changes for b, a in c.renames if b == MAIN), MAIN)
