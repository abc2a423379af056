#!/bin/sh
# vLLM on TPU: fetch what earlier containers compiled, run one, and share what it compiled.
#
#   JAX_CACHE_STORE=s3://my-bucket/jax sh tpu-inference.sh IMAGE COMMAND…
#
# The image has jaxcache beside jax; this machine has jaxcache[remote].
set -eu
image=$1
shift
root=${JAX_CACHE_ROOT:-/mnt/disks/persist/jax-cache}
mkdir -p "$root"

# contain CACHE COMMAND…: the cache has the same path in the container as here.
contain() {
    cache=$1
    shift
    docker run --rm --privileged --net=host --shm-size=16G -v "$root:$root" \
        -e "JAX_COMPILATION_CACHE_DIR=$cache" -e "VLLM_XLA_CACHE_PATH=$cache" "$image" "$@"
}

# The key is of the container's jax and of its devices: only there it can be computed.
key=$(contain "$root" jaxcache ci key)
cache=$root/$key
jaxcache pull "$JAX_CACHE_STORE/$key" -C "$cache" || echo "tpu-inference.sh: nothing was pulled" >&2
status=0
contain "$cache" "$@" || status=$?
jaxcache push "$JAX_CACHE_STORE/$key" -C "$cache" || echo "tpu-inference.sh: not all was pushed" >&2
exit "$status"
