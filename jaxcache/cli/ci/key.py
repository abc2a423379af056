"""``jaxcache ci key``."""

import os

from jaxcache.cli.options import JsonOutput, locate_cache
from jaxcache.options import CacheDir
from jaxcache.options.run import KeyOptions

EXAMPLE = "jaxcache ci key --hash-files 'src/**/*.py'"
EXIT_CODES = (0, 2, 13)


def command(
    place: CacheDir,
    options: KeyOptions,
    output: JsonOutput,
) -> None:
    """Print a key for the CI system's cache, made of what JAX's keys depend on."""
    from jaxcache.cache.ci.key import CiKey, hash_files
    from jaxcache.cli.ci import describe_job, write_outputs
    from jaxcache.cli.output import emit
    from jaxcache.render.ci import key_view

    files = hash_files(options.hash_files, os.getcwd()) if options.hash_files else None
    path = locate_cache(place.cache_dir).path
    key = CiKey(describe_job(path, options.python, options.platform), files, options.prefix)
    emit(output.form, key_view(path, key, restore_keys=options.restore_keys))
    write_outputs({"key": key.key, "restore-keys": "\n".join(key.restore_keys)})
