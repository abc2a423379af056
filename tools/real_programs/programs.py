"""Small real programs of libraries built on JAX: ``programs.py NAME``.

Each program counts JAX's own monitoring events, independently of jaxcache, and adds what it counted
to the directory ``$TRUTH`` as ``PID.json``.
"""

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import monitoring

EVENTS = {
    "/jax/compilation_cache/compile_requests_use_cache": "asked",
    "/jax/compilation_cache/cache_hits": "hits",
    "/jax/compilation_cache/cache_misses": "misses",
    "/jax/core/compile/backend_compile_duration": "requests",  # of hits too
}
DURATIONS = {
    "/jax/compilation_cache/cache_retrieval_time_sec": "retrieval_seconds",
    "/jax/core/compile/backend_compile_duration": "request_seconds",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower_seconds",
}
X = np.random.RandomState(0).normal(size=(64, 4)).astype(np.float32)
Y = np.tanh(X @ np.array([1.0, -2.0, 0.5, 0.0], np.float32))


def count_events():
    counts = Counter()

    def count(name, *_, **__):
        if name in EVENTS:
            counts[EVENTS[name]] += 1

    def measure(name, seconds, **_):
        count(name)
        if name in DURATIONS:
            counts[DURATIONS[name]] += seconds

    monitoring.register_event_listener(count)
    monitoring.register_event_duration_secs_listener(measure)
    path = Path(os.environ["TRUTH"]) / f"{os.getpid()}.json"
    atexit.register(lambda: path.write_text(json.dumps(counts)))


def fit(loss, parameters, steps=5, rate=0.1):
    """Descend a gradient; every library's training loop in small."""
    import optax

    optimizer = optax.adam(rate)

    @jax.jit
    def step(parameters, state):
        value, gradient = jax.value_and_grad(loss)(parameters)
        updates, state = optimizer.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    state = optimizer.init(parameters)
    for _ in range(steps):
        parameters, state, value = step(parameters, state)
    return float(value)


def run_numpyro():
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, autoguide

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(jnp.zeros(4), 1.0).to_event(1))
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(x @ w, scale), obs=y)

    chains = MCMC(NUTS(model), num_warmup=50, num_samples=50, num_chains=1, progress_bar=False)
    chains.run(jax.random.key(0), X, Y)
    chains.print_summary()
    Predictive(model, chains.get_samples())(jax.random.key(0), X)
    guide = autoguide.AutoNormal(model)
    svi = SVI(model, guide, numpyro.optim.Adam(0.01), Trace_ELBO())
    print(svi.run(jax.random.key(0), 50, X, Y, progress_bar=False).losses[-1])


def run_diffrax():
    import diffrax

    term = diffrax.ODETerm(lambda t, y, args: -args * y + jnp.sin(t))
    steps = diffrax.PIDController(rtol=1e-4, atol=1e-6)

    @jax.jit
    def end(rate):
        solution = diffrax.diffeqsolve(
            term, diffrax.Tsit5(), 0, 3, 0.1, jnp.ones(3), rate, stepsize_controller=steps
        )
        return solution.ys[-1]

    print(end(0.5), jax.jacrev(end)(0.5))


def run_optimistix():
    import optimistix

    solver = optimistix.LevenbergMarquardt(rtol=1e-4, atol=1e-4)
    fitted = optimistix.least_squares(lambda w, _: jnp.tanh(X @ w) - Y, solver, jnp.zeros(4))
    print(fitted.value)
    newton = optimistix.Newton(rtol=1e-4, atol=1e-4)
    print(optimistix.root_find(lambda y, a: y - jnp.cos(a * y), newton, 0.5, args=1.0).value)


def run_brax():
    from brax import envs

    environment = envs.get_environment("inverted_pendulum", backend="spring")
    state = jax.jit(environment.reset)(jax.random.key(0))
    step = jax.jit(environment.step)
    for _ in range(5):
        state = step(state, jnp.zeros(environment.action_size))
    print(state.reward)


def run_jaxopt():
    import jaxopt

    def loss(w, x, y):
        return jnp.mean((jnp.tanh(x @ w) - y) ** 2)

    print(jaxopt.LBFGS(loss, maxiter=10).run(jnp.zeros(4), X, Y).params)
    simplex = jaxopt.ProjectedGradient(loss, jaxopt.projection.projection_simplex, maxiter=5)
    print(simplex.run(jnp.ones(4) / 4, x=X, y=Y, hyperparams_proj=1.0).params)


def run_blackjax():
    import blackjax

    def density(w):
        return -jnp.sum((X @ w - Y) ** 2) - jnp.sum(w**2)

    warmup = blackjax.window_adaptation(blackjax.nuts, density)
    (state, parameters), _ = warmup.run(jax.random.key(0), jnp.zeros(4), num_steps=50)
    kernel = blackjax.nuts(density, **parameters)
    _, states = jax.lax.scan(
        lambda s, k: (kernel.step(k, s)[0],) * 2, state, jax.random.split(jax.random.key(0))
    )
    print(states.position[-1])


def run_flax():
    from flax import linen, nnx

    class Dense(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(1)(jax.nn.relu(linen.Dense(8)(x)))[:, 0]

    dense = Dense()
    print(fit(lambda p: jnp.mean((dense.apply(p, X) - Y) ** 2), dense.init(jax.random.key(0), X)))

    model = nnx.Linear(4, 1, rngs=nnx.Rngs(0))
    print(nnx.jit(nnx.value_and_grad(lambda m: jnp.mean((m(X)[:, 0] - Y) ** 2)))(model)[0])


def run_haiku():
    import haiku

    network = haiku.without_apply_rng(haiku.transform(lambda x: haiku.nets.MLP([8, 1])(x)[:, 0]))
    print(
        fit(lambda p: jnp.mean((network.apply(p, X) - Y) ** 2), network.init(jax.random.key(0), X))
    )


def run_equinox():
    import equinox

    model = equinox.nn.MLP(4, "scalar", 8, 2, key=jax.random.key(0))
    arrays, static = equinox.partition(model, equinox.is_inexact_array)

    def loss(arrays):
        return jnp.mean((jax.vmap(equinox.combine(arrays, static))(X) - Y) ** 2)

    print(fit(loss, arrays), equinox.filter_jit(model)(X[0]))


def run_orbax():
    import orbax.checkpoint as ocp

    tree = {"w": jax.random.normal(jax.random.key(0), (8, 8)), "step": jnp.int32(3)}
    with tempfile.TemporaryDirectory() as directory, ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(Path(directory) / "state", tree)
        checkpointer.wait_until_finished()
        shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, tree)
        restored = checkpointer.restore(Path(directory) / "state", shapes)
    print(jax.jit(lambda t: t["w"].sum() + t["step"])(restored))


def run_tinygp():
    from tinygp import GaussianProcess, kernels

    def loss(parameters):
        kernel = jnp.exp(parameters["scale"]) * kernels.Matern32(jnp.exp(parameters["length"]))
        return -GaussianProcess(kernel, X[:, 0], diag=0.1).log_probability(Y)

    print(fit(loss, {"scale": jnp.float32(0), "length": jnp.float32(0)}))


def run_jraph():
    import jraph

    graph = jraph.GraphsTuple(
        nodes=jnp.asarray(X[:5]),
        edges=jnp.ones((4, 4)),
        senders=jnp.arange(4),
        receivers=jnp.arange(1, 5),
        n_node=jnp.array([5]),
        n_edge=jnp.array([4]),
        globals=jnp.ones((1, 4)),
    )
    network = jraph.GraphNetwork(
        update_edge_fn=lambda edges, senders, receivers, _: jnp.tanh(edges + senders - receivers),
        update_node_fn=lambda nodes, _, received, __: nodes + received,
    )
    print(jax.jit(network)(graph).nodes.sum())


def run_distrax():
    import distrax

    def loss(parameters):
        bijector = distrax.ScalarAffine(shift=parameters["shift"], scale=parameters["scale"])
        flow = distrax.Transformed(distrax.Normal(0.0, 1.0), bijector)
        return -flow.log_prob(Y).mean()

    print(fit(loss, {"shift": jnp.float32(0), "scale": jnp.float32(1)}))
    print(distrax.Categorical(logits=jnp.ones(4)).sample(seed=jax.random.key(0), sample_shape=3))


def run_evosax():
    from evosax.algorithms import CMA_ES

    strategy = CMA_ES(population_size=8, solution=jnp.zeros(4))
    parameters = strategy.default_params
    key = jax.random.key(0)
    state = strategy.init(key, jnp.zeros(4), parameters)

    @jax.jit
    def generation(key, state):
        population, state = strategy.ask(key, state, parameters)
        fitness = jax.vmap(lambda w: jnp.mean((jnp.tanh(X @ w) - Y) ** 2))(population)
        state, _ = strategy.tell(key, population, fitness, state, parameters)
        return state, fitness.min()

    for _ in range(3):
        state, best = generation(key, state)
    print(best)


def run_gymnax():
    import gymnax

    environment, parameters = gymnax.make("CartPole-v1")
    key = jax.random.key(0)
    _, state = jax.jit(environment.reset)(key, parameters)
    step = jax.jit(environment.step)
    for _ in range(3):
        _, state, reward, *_ = step(key, state, 1, parameters)
    print(reward)


def run_penzai():
    from penzai import pz
    from penzai.models import simple_mlp

    model = simple_mlp.MLP.from_config(
        name="mlp", init_base_rng=jax.random.key(0), feature_sizes=[4, 8, 1]
    )
    named = pz.nx.wrap(jnp.asarray(X), "batch", "features")
    forward = pz.variable_jit(lambda model, x: model(x))
    print(forward(model, named).unwrap("batch", "features").sum())


def run_jaxmd():
    from jax_md import energy, simulate, space

    displacement, shift = space.periodic(4.0)
    potential = energy.soft_sphere_pair(displacement)
    init, apply = simulate.nve(potential, shift, 1e-3)
    positions = jax.random.uniform(jax.random.key(0), (16, 2)) * 4.0
    state = init(jax.random.key(1), positions, kT=1.0)
    step = jax.jit(apply)
    for _ in range(3):
        state = step(state)
    print(potential(state.position))


def run_keras():
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(X, Y, epochs=2, batch_size=32, verbose=0)
    print(model.predict(X, verbose=0).sum())


def run_e3nn():
    import e3nn_jax as e3nn

    vectors = e3nn.IrrepsArray("1o", jnp.asarray(X[:, :3]))

    @jax.jit
    def features(vectors):
        harmonics = e3nn.spherical_harmonics("0e + 1o + 2e", vectors, normalize=True)
        return e3nn.tensor_product(harmonics, vectors).array

    print(features(vectors).sum())


def run_mjx():
    import mujoco
    from mujoco import mjx

    model = mujoco.MjModel.from_xml_string(
        """
        <mujoco><worldbody><body><joint type="hinge" axis="0 1 0"/>
        <geom type="capsule" size="0.1" fromto="0 0 0 0 0 1"/></body></worldbody></mujoco>
        """
    )
    on_device = mjx.put_model(model)
    data = mjx.make_data(on_device)
    step = jax.jit(mjx.step)
    for _ in range(3):
        data = step(on_device, data)
    print(data.qpos)


def run_callbacks():
    """Print from compiled code, which JAX before 0.11 does not cache."""

    @jax.jit
    def loud(x):
        jax.debug.print("sum {}", x.sum())
        return x * 2

    print(loud(X).mean())


def run_distributed():
    """Start two processes of ``jax.distributed`` on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, __file__, "process", address]
    children = [subprocess.Popen([*command, str(number)]) for number in range(2)]
    sys.exit(max(child.wait() for child in children))


def run_process():
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    count_events()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(sys.argv[2], num_processes=2, process_id=int(sys.argv[3]))
    rows = NamedSharding(Mesh(np.array(jax.devices()), ("i",)), PartitionSpec("i"))
    x = jax.make_array_from_callback(X.shape, rows, lambda index: X[index])
    step = jax.jit(
        lambda x: jnp.tanh(x).sum(), out_shardings=NamedSharding(rows.mesh, PartitionSpec())
    )
    print(step(x), jax.jit(jnp.sin)(1.0))
    jax.distributed.shutdown()


if __name__ == "__main__":
    if sys.argv[1] not in ("distributed", "process"):
        count_events()
    globals()[f"run_{sys.argv[1]}"]()
