#!/usr/bin/env bash
# Run small programs of real libraries with the cache cold, hot and filled from a recipe, and compare
# what jaxcache reports with JAX's own events and the files on disk. Exits 1 where they differ.
#
# usage: tools/real_programs.sh JAXCACHE_PYTHON [PROGRAM...]
# COMPARE=phases compares where the time went with the clock and JAX's events (phases.py) instead.
# Makes build/real-programs, once; JAX=VERSION in the environment chooses another jax than 0.10.2.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
shift

venv=build/real-programs/venv-${JAX:=0.10.2}
if [ ! -e "$venv/.done" ]; then
  "$python" -m venv --clear "$venv"
  "$venv/bin/python" -m pip install --quiet "jax==$JAX" numpyro diffrax optimistix brax jaxopt \
    blackjax flax dm-haiku equinox orbax-checkpoint optax tinygp jraph distrax evosax gymnax penzai \
    jax-md keras e3nn-jax mujoco-mjx
  touch "$venv/.done"
fi
exec "$python" "tools/real_programs/${COMPARE:-compare}.py" "$venv/bin/python" "$@"
