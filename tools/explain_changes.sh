#!/usr/bin/env bash
# Make the changes of tools/explain_changes to programs after histories, and judge what
# `jaxcache explain` answers. Exits 1 where an answer is wrong. Each result is appended to
# build/explain-changes/results-JAX.jsonl: where the run was interrupted, the next one goes on. Remove
# the file to begin again.
#
# usage: tools/explain_changes.sh JAXCACHE_PYTHON [--sample N] [--only TEXT]... [--jobs N] ...
# Makes build/explain-changes, once. JAX=VERSION in the environment chooses another jax than 0.10.2,
# OTHER=VERSION the jax of the change of version. PYTHON_JAX and PYTHON_OTHER choose their Pythons:
# jax 0.12 needs Python 3.12.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
shift

home=build/explain-changes
make_venv() {
  if [ ! -e "$home/venv-$1/.done" ]; then
    "$2" -m venv --clear "$home/venv-$1"
    "$home/venv-$1/bin/python" -m pip install --quiet "jax==$1" "jaxlib==$1" flax optax equinox \
      diffrax numpyro dm-haiku
    touch "$home/venv-$1/.done"
  fi
}
make_venv "${JAX:=0.10.2}" "${PYTHON_JAX:-$python}"
make_venv "${OTHER:=0.12.0.1}" "${PYTHON_OTHER:-$python}"
if [ ! -d "$home/codec-$JAX" ]; then
  "$home/venv-$JAX/bin/python" -m pip install --quiet --target "$home/codec-$JAX" zstandard
fi
exec "$python" -m tools.explain_changes "$home/venv-$JAX/bin/python" \
  --other "$home/venv-$OTHER/bin/python" --codec "$PWD/$home/codec-$JAX" \
  --results "$home/results-$JAX.jsonl" "$@"
