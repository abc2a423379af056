#!/bin/sh
# mutation.sh PYTHON SAMPLE SEED: how many of SAMPLE random changes of the last commit's code do the tests notice?
# Works in a clone, because cosmic-ray changes files where they are. A run that was interrupted goes on:
# `rm -r build/mutation` starts anew.
set -e
PATH=$(cd "$(dirname "$1")" && pwd):$PATH
mkdir -p build/mutation && cd build/mutation
session=$PWD/$2-of-seed-$3.sqlite
[ -d tree ] || git clone --quiet ../.. tree
cd tree
export PYTHONPATH="$PWD"
config=tools/mutation.toml
[ -f .testmondata ] ||
  python -m pytest -q -n 2 --dist worksteal -p no:cacheprovider --testmon -m "not slow and not jax"
if [ ! -f "$session" ]; then
  cosmic-ray init $config "$session.new"
  cr-filter-operators "$session.new" $config
  python tools/mutation_sample.py "$session.new" "$2" "$3"
  mv "$session.new" "$session"
fi
cosmic-ray exec $config "$session"
cr-report --surviving-only --show-diff "$session"
echo "survived, in percent, with the 95 % interval:"
cr-rate --estimate "$session"
