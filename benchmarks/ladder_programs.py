"""The programs of the ladder: each prints the phases of its start as JSON."""

#: Prints its phases as JSON; ``{BODY}`` leaves the first result in ``result``.
FRAME = """
import json, sys, time
began = time.time()
import jax, jax.numpy as jnp
{LIBRARY}
imported = time.time()
spans = {{"trace": 0.0, "lower": 0.0, "compile": 0.0, "load": 0.0}}
_KINDS = {{
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
    "/jax/compilation_cache/cache_retrieval_time_sec": "load",
}}

def count(name, seconds, **_):
    if name in _KINDS:
        spans[_KINDS[name]] += seconds

jax.monitoring.register_event_duration_secs_listener(count)
{BODY}
jax.block_until_ready(result)
spans["compile"] -= spans["load"]
print(json.dumps({{"import": imported - began, **spans, "program": time.time() - began}}))
"""
_MODEL = """
LAYERS, WIDTH, ROWS = 24, 64, 48
def init(key):
    normal = lambda *shape: jax.random.normal(key, shape) * 0.02
    d = WIDTH
    block = lambda: dict(a=normal(d, 3 * d), o=normal(d, d), u=normal(d, 4 * d), d=normal(4 * d, d))
    return [block() for _ in range(LAYERS)]

def layer(x, b):
    q, k, v = jnp.split(x @ b["a"], 3, -1)
    x = x + jax.nn.softmax(q @ k.T / 8) @ v @ b["o"]
    return x + jax.nn.gelu(x @ b["u"]) @ b["d"]

def unrolled(p, x):
    for b in p:
        x = layer(x, b)
    return x

def scanned(p, x):
    p = jax.tree.map(lambda *leaves: jnp.stack(leaves), *p)
    return jax.lax.scan(lambda x, b: (layer(x, b), None), x, p)[0]

parameters = jax.jit(init)(jax.random.key(0))
inputs = jnp.ones((ROWS, WIDTH))
"""
_STEP = """
def step(p, x):
    value, gradients = jax.value_and_grad(lambda p: ({FORWARD}(p, x) ** 2).mean())(p)
    return jax.tree.map(lambda p, g: p - 0.1 * g, p, gradients), value

result = jax.jit(step)(parameters, inputs)
"""
_REQUEST = """
import http.server, threading, urllib.request
answer = jax.jit(lambda p, x: unrolled(p, x)[-1].argmax())

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = str(int(answer(parameters, inputs))).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass

server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
result = urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}").read()
result = int(result)
"""
_LIBRARY = """
from flax import linen
class Model(linen.Module):
    @linen.compact
    def __call__(self, x):
        for _ in range(12):
            x = x + linen.Dense(128)(linen.gelu(linen.LayerNorm()(linen.Dense(128)(x))))
        return x

model, inputs = Model(), jnp.ones((32, 128))
parameters = jax.jit(model.init)(jax.random.key(0), inputs)
loss = lambda p, x: (model.apply(p, x) ** 2).mean()
result = jax.jit(jax.value_and_grad(loss))(parameters, inputs)
"""
#: Of each program: what it imports beside jax, and its body.
PROGRAMS = {
    "24 layers unrolled": ("", _MODEL + _STEP.replace("{FORWARD}", "unrolled")),
    "24 layers scanned": ("", _MODEL + _STEP.replace("{FORWARD}", "scanned")),
    "a server's first request": ("", _MODEL + _REQUEST),
    "flax": ("import flax", _LIBRARY),
}
