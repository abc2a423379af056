"""Programs that describe this Python, its jax and its host, one answer each.

``warm/child/query.py`` starts :func:`settings`, :func:`probe` and :func:`hlo_text`;
``warm/crosshost/target_profile.py`` starts :func:`capture`; ``warm/child/query.py``
:func:`load_entries`.

jaxlib reports the CPU's features: ``/proc/cpuinfo`` does not list every feature that LLVM uses.
"""

import json
import os
import platform
import re
import sys
from typing import Any

from ..core import seams
from ..core.seams import cache, compiling, first_line, listening

#: A feature as LLVM spells it, inside serialized bytes of XLA; not the middle of a triple.
_FEATURE = re.compile(rb"(?<![\w-])[+-][a-z0-9][a-z0-9.-]*")


def features() -> "list[str] | None":
    """Return LLVM's features of this CPU, such as ``+avx2`` and ``-xop``; None if not known.

    Those that jaxlib compiles for: ``--xla_cpu_max_isa`` in ``XLA_FLAGS`` limits them. Switches
    JAX's cache off in this process, because it may compile.
    """
    try:
        import jax

        jax.config.update("jax_enable_compilation_cache", False)
        devices = jax.local_devices(backend="cpu")
        data = compiling.serialize_topology(devices) or compiling.sample(devices[0])
    except Exception:
        return None
    names = {name.decode() for name in _FEATURE.findall(data)}
    return sorted(names) or None


def _settings_on_keys() -> "dict[str, Any]":
    """Return the settings of the environment and the defaults; none if JAX's are not known."""
    try:
        environment_settings = seams.settings_of_environment()
        return {"settings": environment_settings, "defaults": seams.default_settings()}
    except Exception:
        return {}


def probe(parent: Any) -> None:
    """Compile one trivial program; answer with the versions, with an argument the features, too.

    The parent names a fresh cache directory in the environment, and reads the entry there.
    """
    import jax

    hashes: dict[str, str] = {}

    def take(name: str, hasher: Any) -> None:
        hashes.setdefault(name, listening.hash_component(hasher))

    listening.hear_components(take)
    jax.jit(lambda x: x + 1)(1.0).block_until_ready()
    device = jax.devices()[0]
    described = {
        **seams.describe_versions(),
        **listening.describe_devices(device.client, device),
        **_settings_on_keys(),
        "cpu_features": features() if sys.argv[1:] else None,
        "topology": hashes.get("accelerator_config"),
        "xla_flags": sorted(f for _, f in seams.flags() if seams.is_hashed(f)),
        # This process is alone; the program that is to use the cache need not be.
        "process_count": int(os.environ.get("JAX_NUM_PROCESSES") or 1),
    }
    parent.answer(**described)


def has_module(name: str) -> bool:
    """Whether a module imports here."""
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def _describe_settings(names: "list[str]") -> "dict[str, Any]":
    """Describe the imported jax: versions, settings, codecs."""
    import jax

    return {
        "python_version": sys.version.split()[0],
        **seams.describe_versions(),
        "jaxlib_digest": listening.jaxlib_digest(),
        **cache.codecs(),
        "has_filelock": has_module("filelock"),
        "has_epath": has_module("etils.epath"),
        "settings": {n: getattr(jax.config, n) for n in names if hasattr(jax.config, n)},
    }


def smallest_entry_bytes() -> "int | None":
    """Return the size of the entry of a trivial program; None where no setting limits sizes."""
    import jax

    least = jax.config.jax_persistent_cache_min_entry_size_bytes
    if least <= 0 and getattr(jax.config, "jax_compilation_cache_max_size", -1) == -1:
        return None
    try:
        entry = compiling.sample(jax.local_devices(backend="cpu")[0])
        return cache.compressed_bytes(entry)
    except Exception:
        return None


def settings(parent: Any) -> None:
    """Answer three times: a wrong ``XLA_FLAGS`` ends the process after the first answer."""
    from ..live.settings import describe as describe_live

    parent.answer(**_describe_settings(sys.argv[1:]), live=describe_live())
    parent.answer(compile_options=compiling.compile_options().hex())
    import jax

    jax.config.update("jax_platforms", "cpu")
    parent.answer(cpu_features=features(), smallest_entry_bytes=smallest_entry_bytes())


def hlo_text(parent: Any) -> None:
    """Read an ``HloModuleProto``, whose size is the argument; answer with its text."""
    try:
        module = compiling.find_hlo_module()
    except ImportError as error:
        parent.answer(no_jaxlib=str(error))
        return
    data = parent.requests.read(int(sys.argv[1]))
    text = module.from_serialized_hlo_module_proto(data).to_string()
    parent.answer(text=text.rstrip("\n") + "\n")


#: Configuration that enters keys through the program or the compile options, not by itself.
_NOT_IN_KEYS = (
    *("JAX_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE_MIN", "JAX_ENABLE_COMPILATION_CACHE"),
    *("JAX_LOG", "JAX_DUMP", "JAX_PLATFORMS", "JAX_RAISE", "JAX_EXPLAIN", "JAX_DEBUG_LOG"),
    *("JAX_COORDINATOR", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_TRACEBACK"),
)
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


def plugin_versions() -> "dict[str, str]":
    """Versions of what is installed beside jaxlib and compiles: PJRT plugins, libtpu, CUDA."""
    from importlib.metadata import distributions

    versions = {}
    for distribution in distributions():
        name = str(distribution.metadata["Name"] or "").lower().replace("_", "-")
        plugin = name.startswith("jax-") and name.endswith(("-plugin", "-pjrt"))
        if plugin or name.startswith(("libtpu", "nvidia-cu", "nvidia-nccl", "jax-rocm")):
            versions[name] = distribution.version
    return dict(sorted(versions.items()))


def cpu_facts() -> "dict[str, Any]":
    """The host's processor: its name as Linux prints it, its features as jaxlib reports them."""
    name = None
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    name = line.partition(":")[2].strip()
                    break
    except OSError:
        pass
    return {"machine": platform.machine(), "name": name, "features": features() or []}


def environment(environ: Any) -> "dict[str, str]":
    """Select the variables that enter keys: flags literally, settings through the program."""
    import jax

    variables = {name: environ[name] for name in _FLAGS if environ.get(name)}
    for name, value in environ.items():
        is_jax_setting = name.startswith("JAX_") and hasattr(jax.config, name.lower())
        if is_jax_setting and not name.startswith(_NOT_IN_KEYS):
            variables[name] = value
    return dict(sorted(variables.items()))


def _describe_host() -> "dict[str, Any]":
    """Everything that a key made here depends on, and what it takes to make it elsewhere."""
    import jax

    devices = jax.devices()
    client = devices[0].client
    return {
        "platform": str(client.platform),
        "lowering_platform": compiling.lowering_platform(client),
        "platform_version": str(client.platform_version),
        "device_kinds": [str(device.device_kind) for device in devices],
        "device_ids": [int(device.id) for device in devices],
        "device_processes": [int(device.process_index) for device in devices],
        "process_count": int(jax.process_count()),
        "process_index": int(jax.process_index()),
        **compiling.topology_facts(devices),
        **_describe_settings(
            ["jax_compilation_cache_dir", "jax_persistent_cache_enable_xla_caches"]
        ),
        "plugins": plugin_versions(),
        "cpu": cpu_facts(),
        "environment": environment(os.environ),
    }


def capture(parent: Any) -> None:
    """Answer with the body of a target profile (docs/target.md).

    With the argument ``pod``, as one process of the program of several hosts that runs here.
    """
    if sys.argv[1:] != ["pod"]:
        parent.answer(**_describe_host())
        return
    import jax

    try:
        listening.join_pod(jax)
    except Exception as error:
        parent.answer(no_pod=first_line(error))
        return
    facts = _describe_host()
    jax.distributed.shutdown()  # waits for the others, which cannot go on without process 0
    parent.answer(**facts)


def load_entries(parent: Any) -> None:
    """Deserialize executables with the real backend, which may end this process.

    The argument is the number of devices that a CPU host pretends to have, for sharded programs.
    A request is a line of JSON (``size_bytes``, ``device_assignment``) followed by the payload.
    Answers: ``ready`` once, with a program of this jax to compare others with, then ``done``,
    ``failed`` or ``absent`` (devices that are not here) per request.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_force_host_platform_device_count" not in flags:
        count = f"--xla_force_host_platform_device_count={sys.argv[1]}"
        os.environ["XLA_FLAGS"] = f"{flags} {count}".strip()
    import jax

    jax.config.update("jax_enable_compilation_cache", False)
    backend = jax.devices()[0].client
    try:
        load = compiling.choose_loader(backend)
    except Exception as error:
        parent.answer(event="unknown-jax", detail=f"{type(error).__name__}: {error}"[:500])
        return
    parent.answer(
        event="ready",
        platform=backend.platform,
        sample=listening.or_none(lambda: compiling.sample(jax.devices()[0]).hex()),
    )
    here = {device.id for device in backend.devices()}
    while line := parent.requests.readline():
        request = json.loads(line)
        payload = parent.requests.read(request["size_bytes"])
        assignment = request["device_assignment"]
        if not here.issuperset(i for row in assignment for i in row):
            parent.answer(event="absent")
            continue
        try:
            load(payload, assignment)
        except Exception as error:
            parent.answer(event="failed", detail=first_line(error))
        else:
            parent.answer(event="done")
