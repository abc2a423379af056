#!/bin/sh
# Check the cache that came with the image; run without one rather than with a rotten one.
set -eu
if ! jaxcache verify --grace 0s; then
  echo "the compilation cache of this image is damaged: going on without it" >&2
  export JAX_ENABLE_COMPILATION_CACHE=false
fi
exec "$@"
