#!/usr/bin/env bash
# Make each change of tools/explain_changes/changes.py to twelve programs, six of them of libraries,
# and judge what `jaxcache explain` answers. Exits 1 where an answer is wrong.
#
# usage: tools/explain_changes.sh JAXCACHE_PYTHON [--only TEXT]... [--jobs N]
# Makes build/explain-changes, once. JAX=VERSION in the environment chooses another jax than 0.10.2,
# OTHER=VERSION the jax of the change of version.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
shift

home=build/explain-changes
make_venv() {
  if [ ! -e "$home/venv-$1/.done" ]; then
    "$python" -m venv --clear "$home/venv-$1"
    "$home/venv-$1/bin/python" -m pip install --quiet "jax==$1" "jaxlib==$1" flax optax equinox \
      diffrax numpyro dm-haiku
    touch "$home/venv-$1/.done"
  fi
}
make_venv "${JAX:=0.10.2}"
make_venv "${OTHER:=0.12.0.1}"
if [ ! -d "$home/codec-$JAX" ]; then
  "$home/venv-$JAX/bin/python" -m pip install --quiet --target "$home/codec-$JAX" zstandard
fi
exec "$python" tools/explain_changes "$home/venv-$JAX/bin/python" \
  --other "$home/venv-$OTHER/bin/python" --codec "$home/codec-$JAX" "$@"
