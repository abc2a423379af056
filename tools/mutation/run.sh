#!/bin/sh
# run.sh PYTHON SAMPLE SEED: how many of SAMPLE random changes of the last commit's code do the tests notice?
# Works in two clones, because cosmic-ray changes files where they are, and a clone takes one change at a
# time. A run that was interrupted goes on: `rm -r build/mutation` starts anew.
set -e
PATH=$(cd "$(dirname "$1")" && pwd):$PATH
mkdir -p build/mutation/coverage && cd build/mutation
directory=$PWD
session=$PWD/$2-of-seed-$3.sqlite
for worker in 1 2; do
  [ -d tree-$worker ] || git clone --quiet ../.. tree-$worker
done
cd tree-1
export PYTHONPATH="$PWD"
if [ ! -f ../coverage/data ]; then
  # A file of the environment starts coverage in each process that a test starts.
  hook=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/mutation
  cp tools/mutation/in_each_process.py "${hook}_process.py"
  echo 'import mutation_process' >"$hook.pth"
  trap 'rm -f "$hook.pth" "${hook}_process.py"' EXIT
  rm -rf ../durations ../coverage/* ../current && mkdir ../current
  MUTATION_TREE=$PWD MUTATION_CURRENT=$directory/current MUTATION_DURATIONS=$directory/durations \
    PYTHONPATH=$PWD:$PWD/tools/mutation \
    COVERAGE_PROCESS_START=$PWD/tools/mutation/coverage.ini \
    python -m pytest -q -n 2 --dist worksteal -p no:cacheprovider -p record -m "not slow" || true # what fails is left out
  rm -f "$hook.pth" "${hook}_process.py"
  MUTATION_TREE=$PWD coverage combine --rcfile tools/mutation/coverage.ini --quiet
fi
if [ ! -f "$session" ]; then
  cosmic-ray init tools/mutation/config.toml "$session.new"
  cr-filter-operators "$session.new" tools/mutation/config.toml
  python tools/mutation/sample.py "$session.new" "$2" "$3"
  mv "$session.new" "$session"
fi
python tools/mutation/parts.py split "$session"
for worker in 1 2; do
  (cd ../tree-$worker && PYTHONPATH=$PWD cosmic-ray exec tools/mutation/config.toml "$session.$worker") &
done
wait
python tools/mutation/parts.py join "$session"
cr-report --surviving-only --show-diff "$session"
echo "survived, in percent, with the 95 % interval:"
cr-rate --estimate "$session"
