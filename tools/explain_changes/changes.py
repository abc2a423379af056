"""The changes that ``explain`` must name, and for each the causes that are right.

This list was committed before the code that explains it. A change is the edit that a user would
make; where it breaks ``explain``, the change stays and the code is mended.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

FLAG = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}
FOUR_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
CODE = frozenset({"code", "constant"})
#: What is right of a structure that has other members: of a function that takes it, and of one
#: that makes it.
STRUCTURE = frozenset({"argument-structure", "argument-shape"}) | CODE


@dataclass(frozen=True)
class Edit:
    """Replace a text that occurs once in a file of a program."""

    file: str
    before: str
    after: str


@dataclass(frozen=True)
class Change:
    """One change to one program, and what is right to say of it."""

    program: str
    name: str
    edits: tuple[Edit, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    other_jax: bool = False
    """The change is another version of JAX."""
    other_directory: bool = False
    """The change is a cache that was copied to another directory."""
    with_codec: bool = False
    """The change is that zstandard gets installed."""
    causes: frozenset[str] = frozenset()
    """Causes that are right where the functions of the user miss."""
    places: tuple[tuple[str, str], ...] = ()
    """(file, text of a line), of which a cause in the code must name at least one."""
    expects_no_miss: bool = False
    """A run that hits everything is right, too."""


MAIN, PARTS = "main.py", "parts.py"
#: (file, before, after, texts of the lines that are right where they are not those of the edit).
_Row = tuple[str, str, str, tuple[str, ...]]


def _edit(before: str, after: str, *lines: str, file: str = MAIN) -> _Row:
    return file, before, after, lines


#: Edits of the code by program; the keys are the kinds of the issue's list.
CODE_EDITS: dict[str, dict[str, _Row]] = {
    "perceptron": {
        "function": _edit(
            "    return dense(params[-1], x)\n",
            "    x = x - x.mean(axis=-1, keepdims=True)\n    return dense(params[-1], x)\n",
        ),
        "helper": _edit(
            "jnp.mean((prediction - target) ** 2)",
            "jnp.mean(jnp.abs(prediction - target))",
            file=PARTS,
        ),
        "constant": _edit("RATE = 0.1", "RATE = 0.2", "p - RATE * g"),
        "activation": _edit("jax.nn.gelu", "jax.nn.relu"),
        "layers": _edit("LAYERS = 2", "LAYERS = 3"),
        "optimizer": _edit("p - RATE * g", "p - RATE * jnp.sign(g)"),
    },
    "transformer": {
        "function": _edit(
            "    return normalize(x) @ params",
            "    x = jnp.clip(x, -5.0, 5.0)\n    return normalize(x) @ params",
        ),
        "helper": _edit(
            "    mixed = jnp.einsum",
            "    scores = 30.0 * jnp.tanh(scores / 30.0)\n    mixed = jnp.einsum",
            file=PARTS,
        ),
        "constant": _edit("+ 1e-6)", "+ 1e-5)", file=PARTS),
        "activation": _edit("jax.nn.gelu", "jax.nn.relu"),
        "layers": _edit("LAYERS = 2", "LAYERS = 3"),
        "optimizer": _edit("p - 0.1 * g", "p - 0.1 * jnp.sign(g)"),
    },
    "recurrent": {
        "function": _edit("inputs = inputs * 0.5", "inputs = inputs * 0.5 + jnp.flip(inputs, 0)"),
        "helper": _edit(
            "x @ weights[0] + state @ weights[1]",
            "x @ weights[0] + state @ weights[1] + state",
            file=PARTS,
        ),
        "constant": _edit("inputs * 0.5", "inputs * 0.25"),
        "activation": _edit("jnp.tanh(", "jnp.sin(", file=PARTS),
        "layers": _edit("LAYERS = 2", "LAYERS = 3"),
    },
    "convolution": {
        "function": _edit("images.mean(axis=(1, 2))", "images.max(axis=(1, 2))"),
        "helper": _edit("jax.lax.max,", "jax.lax.min,", file=PARTS),
        "constant": _edit("1.0 + forward", "2.0 + forward"),
        "activation": _edit("jax.nn.relu", "jax.nn.sigmoid"),
        "layers": _edit("LAYERS = 2", "LAYERS = 3"),
        "optimizer": _edit("p - RATE * g", "p - RATE * jnp.sign(g)"),
    },
    "planets": {
        "function": _edit("return x + DT * v, v", "return x + DT * v, 0.99 * v"),
        "helper": _edit(
            "    offset = b - a\n",
            "    offset = b - a\n    offset = jnp.clip(offset, -1.0, 1.0)\n",
            file=PARTS,
        ),
        "constant": _edit("DT = 0.01", "DT = 0.02", "v + DT *", "x + DT * v"),
        "activation": _edit("** 1.5", "** 0.5", file=PARTS),
    },
    "sampler": {
        "function": _edit("< ratio\n", "< jnp.sqrt(ratio)\n"),
        "helper": _edit("jnp.sum(x * x", "jnp.sum(jnp.abs(x)", file=PARTS),
        "constant": _edit("SCALE = 0.5", "SCALE = 0.25", "x + SCALE *"),
        "activation": _edit("jnp.tanh(x)", "jnp.sin(x)"),
        "optimizer": _edit("jax.random.normal(", "jax.random.laplace("),
    },
    "flax_classifier": {
        "function": _edit(
            "        x = nn.gelu(x)\n", "        x = nn.gelu(x)\n        x = x / (1.0 + x * x)\n"
        ),
        "helper": _edit("x + nn.relu(hidden)", "x + 0.5 * nn.relu(hidden)", file=PARTS),
        "constant": _edit("RATE = 1e-3", "RATE = 2e-3", "optimizer.update(gradient"),
        "activation": _edit("nn.gelu", "nn.silu"),
        "layers": _edit("LAYERS = 2", "LAYERS = 3"),
        "optimizer": _edit("optax.adam(RATE)", "optax.lion(RATE)", "optimizer.update(gradient"),
    },
    "optax_regression": {
        "function": _edit("jnp.sum(params[\"w\"] ** 2)", "jnp.sum(jnp.abs(params[\"w\"]))"),
        "helper": _edit("return jnp.sin(x)", "return jnp.sin(x) + x", file=PARTS),
        "constant": _edit("+ 1e-4 *", "+ 1e-3 *"),
        "activation": _edit("jnp.sin(x)", "jnp.cos(x)", file=PARTS),
        "optimizer": _edit("optax.sgd(RATE)", "optax.adam(RATE)", "optimizer.update(gradient"),
    },
    "equinox_network": {
        "function": _edit(
            "        return self.output(x)\n", "        x = x * x\n        return self.output(x)\n"
        ),
        "helper": _edit("x + jax.nn.tanh(hidden)", "x - jax.nn.tanh(hidden)", file=PARTS),
        "constant": _edit("RATE = 0.05", "RATE = 0.01", "p - RATE * g"),
        "activation": _edit("jax.nn.softplus", "jax.nn.sigmoid"),
        "layers": _edit("LAYERS = 2", "LAYERS = 3"),
        "optimizer": _edit("p - RATE * g", "p - RATE * jnp.sign(g)"),
    },
    "diffrax_oscillator": {
        "function": _edit(
            "    position, speed = state\n",
            "    position, speed = state\n    speed = jnp.tanh(speed)\n",
        ),
        "helper": _edit("-stiffness * position", "-stiffness * position**3", file=PARTS),
        "constant": _edit("DAMPING = 0.1", "DAMPING = 0.3", "- DAMPING * speed"),
        "activation": _edit("jnp.sqrt(jnp.sum", "jnp.log(jnp.sum"),
        "optimizer": _edit("diffrax.Heun()", "diffrax.Dopri5()", "diffrax.diffeqsolve("),
    },
    "numpyro_regression": {
        "function": _edit("+ intercept\n", "+ intercept * intercept\n"),
        "helper": _edit("x - x.mean()", "x - x.max()", file=PARTS),
        "constant": _edit("dist.Exponential(1.0)", "dist.Exponential(3.0)"),
        "activation": _edit("jnp.tanh(slope", "jnp.sin(slope"),
        "optimizer": _edit("optim.SGD(RATE)", "optim.Adam(RATE)", "svi.init(", "svi.update("),
    },
    "haiku_network": {
        "function": _edit("    return head(x)\n", "    x = x * 3.0\n    return head(x)\n"),
        "helper": _edit("jax.nn.tanh(hk.Linear(1)(x))", "jax.nn.tanh(hk.Linear(1)(x)) ** 3", file=PARTS),
        "constant": _edit("RATE = 0.1", "RATE = 0.3", "p - RATE * g"),
        "activation": _edit("jax.nn.relu", "jax.nn.elu"),
        "layers": _edit("LAYERS = 2", "LAYERS = 3"),
        "optimizer": _edit("p - RATE * g", "p - RATE * jnp.sign(g)"),
    },
}  # fmt: skip
#: Where a structure with other members is made or used by a function without arguments of it.
_STRUCTURES = {"layers": STRUCTURE, "optimizer": STRUCTURE}
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
}
_BATCHES = {"transformer": 2, "recurrent": 4, "convolution": 2, "planets": 6, "sampler": 16}
_BATCHES |= {"diffrax_oscillator": 3}
_DTYPES = {"transformer": ("np.int32", "np.uint8")}
_STEPS = {"transformer": (1, 2), "perceptron": (2, 3), "recurrent": (1, 2), "convolution": (1, 2)}
_STEPS |= {"planets": (10, 20), "sampler": (2, 3), "optax_regression": (2, 3)}
_STEPS |= {"diffrax_oscillator": (64, 128)}
_JIT = "@functools.partial(jax.jit, static_argnames="
_OPTIONS = 'compiler_options={"xla_llvm_disable_expensive_passes": True}'
#: The argument that is donated.
_DONATED = {"sampler": 1, "numpyro_regression": 1}


def changes_of(program: str) -> Iterator[Change]:
    """Yield the changes of one program."""
    for name, (file, before, after, lines) in CODE_EDITS[program].items():
        shown = lines or tuple(x.strip() for x in after.splitlines() if x.strip())
        places = tuple((file if not lines else MAIN, line) for line in shown)
        causes = _STRUCTURES.get(name, CODE)
        yield Change(program, name, (Edit(file, before, after),), causes=causes, places=places)
    yield from _argument_changes(program)
    yield from _jit_changes(program)
    yield Change(program, "XLA flag", env=FLAG, causes=frozenset({"flag"}))
    yield Change(program, "configuration", env=SETTINGS[program], causes=frozenset({"config"}))
    versions = frozenset({"jax-version", "jaxlib-version"})
    yield Change(program, "jax version", other_jax=True, causes=versions)
    yield Change(program, "device count", env=FOUR_DEVICES, causes=frozenset({"device"}))
    path = frozenset({"path"})
    yield Change(program, "directory", other_directory=True, causes=path, expects_no_miss=True)
    order = frozenset({"operation-order"})
    yield Change(
        program, "hash seed", env={"PYTHONHASHSEED": "1"}, causes=order, expects_no_miss=True
    )
    yield Change(program, "zstandard", with_codec=True, causes=frozenset({"codec"}))


def _argument_changes(program: str) -> Iterator[Change]:
    batch = _BATCHES.get(program, 8)
    shape = Edit(MAIN, f"BATCH = {batch}\n", f"BATCH = {2 * batch}\n")
    yield Change(program, "shape", (shape,), causes=frozenset({"argument-shape"}))
    before, after = _DTYPES.get(program, ("np.float32", "np.float16"))
    dtype = Edit(MAIN, f"DTYPE = {before}\n", f"DTYPE = {after}\n")
    yield Change(program, "dtype", (dtype,), causes=frozenset({"argument-dtype"}))
    name = {"recurrent": "unroll"}.get(program, "steps")
    old, new = _STEPS.get(program, (1, 2))
    static = Edit(MAIN, f"{name}={old})", f"{name}={new})")
    yield Change(program, "static argument", (static,), causes=frozenset({"static-argument"}))


def _jit_changes(program: str) -> Iterator[Change]:
    name = {"recurrent": "unroll"}.get(program, "steps")
    line = f'{_JIT}"{name}")'
    donated = _DONATED.get(program, 0)
    donation = Edit(MAIN, line, f"{line[:-1]}, donate_argnums={donated})")
    yield Change(program, "donation", (donation,), causes=frozenset({"donation"}))
    option = Edit(MAIN, line, f"{line[:-1]}, {_OPTIONS})")
    yield Change(program, "jit option", (option,), causes=frozenset({"flag"}))


def all_changes() -> tuple[Change, ...]:
    """Return the changes of all programs."""
    return tuple(change for program in CODE_EDITS for change in changes_of(program))
