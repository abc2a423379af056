"""``jaxcache ci key``."""

import os

from jaxcache.cli.ci import job_environment, write_outputs
from jaxcache.cli.options import JsonOutput
from jaxcache.options import CacheDir
from jaxcache.options.query import KeyOptions
from jaxcache.store.location import locate_cache

EXAMPLE = "jaxcache ci key --hash-files 'src/**/*.py'"
EXIT_CODES = (0, 2, 13)


def command(place: CacheDir, options: KeyOptions, output: JsonOutput) -> None:
    """Print a key for the CI system's cache, from everything that JAX's keys depend on.

    JAX 0.4.36 to 0.10 puts the cache's path into its keys: give every job the same path, or fill
    the cache with warm --portable.
    """
    from jaxcache.cache.bundle.compat import XLA_CACHES
    from jaxcache.cache.ci.key import CiKey, describe_environment, hash_files
    from jaxcache.cli.output import emit
    from jaxcache.render.ci import key_view
    from jaxcache.warm.child.query import probing

    files = hash_files(options.hash_files, os.getcwd()) if options.hash_files else None
    path = locate_cache(place.cache_dir).path
    environment = job_environment(options.platform)
    probed = {**environment, XLA_CACHES: "none"}
    with probing(options.python, probed, features=True) as answer:
        host = answer()
    components = describe_environment(host, environment, cache_dir=path)
    key = CiKey(components, files, options.prefix)
    emit(output.form, key_view(path, key, restore_keys=options.restore_keys))
    write_outputs({"key": key.key, "restore-keys": "\n".join(key.restore_keys)})
