#!/bin/sh
# MaxText: fetch what earlier runs compiled, train, and share what this run compiled.
#
#   JAX_CACHE_STORE=s3://my-bucket/jax sh maxtext.sh base.yml run_name=mine …
#
# Every host of a pod may run it: a push sends what the store lacks, and replaces nothing.
set -eu
root=${JAX_CACHE_ROOT:-$HOME/jax_cache}
# One directory for each set of versions, flags and devices, here and in the store.
key=$(jaxcache ci key -C "$root")
cache=$root/$key
# A store that is empty or out of reach costs compiles, not the run.
jaxcache pull "$JAX_CACHE_STORE/$key" -C "$cache" || echo "maxtext.sh: nothing was pulled" >&2
status=0
python3 -m maxtext.trainers.pre_train.train "$@" "jax_cache_dir=$cache" || status=$?
# Also after a failure: what was compiled until then is sound, and each entry is checked on its way.
jaxcache push "$JAX_CACHE_STORE/$key" -C "$cache" || echo "maxtext.sh: not all was pushed" >&2
exit "$status"
