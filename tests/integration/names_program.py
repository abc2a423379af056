"""Run one small function of each name under the cache; prints the names that JAX hit.

A program for the Python that has jax, told by JAX_… variables.
"""

import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np

NAMES = [
    *("Δt_step", "θ", "损失", "é", "\uff21", "\U0001d518", "שלום", "ก็", "κ\\n", "Δ" * 40),
    *("plain", "<lambda>", "a.b", "..", "a/b", "a b", "a-b", "a__b", "_", "9lives", "jit_", "%s"),
    *(
        "\x1b[31mred",
        'q"uote',
        "back\\slash",
        "\\CE\\94",
        "new\nline",
        "tab\t",
        "\u202e",
        "x" * 170,
    ),
    *("x" * 300, "Δ" * 100),  # too long for the name of a file: JAX warns, and compiles
]

events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))


def make_function(name, number):
    def function(x):
        return jnp.sin(x) * number

    function.__name__ = function.__qualname__ = name
    return function


hits = []
x = jax.device_put(np.array([0.5, 1.5], np.float32))
warnings.simplefilter("ignore")
for number, name in enumerate(NAMES, 2):
    before = len(events)
    jax.jit(make_function(name, number))(x).block_until_ready()
    if "/jax/compilation_cache/cache_hits" in events[before:]:
        hits.append(name)
print(json.dumps(hits))
