#!/bin/sh
# SLURM: sbatch --array=1-8 slurm-array.sh RECIPE CACHE
#
# Each task of the array compiles its part of the recipe, straight into one cache on a file system
# that all nodes share: entries appear whole or not at all, and nobody writes another's.
#SBATCH --job-name=jax-compile
#SBATCH --cpus-per-task=8
#SBATCH --mem=16G
set -eu
jaxcache compile "$1" -C "$2" --jobs "${SLURM_CPUS_PER_TASK:-1}" \
    --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"
