#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# by_address.sh [--slurm] COUNT PROGRAM ARGUMENT…: COUNT processes that meet by RANK, WORLD_SIZE, MASTER_ADDR and
# MASTER_PORT, or by what srun would set. Fails when one of them does.
launcher=torchrun
if [ "$1" = --slurm ]; then
  launcher=slurm
  shift
fi
count=$1
shift
unset OMPI_COMM_WORLD_SIZE RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
rank() { # number, command, in place of this shell: a process that signals reach
  number=$1
  shift
  if [ "$launcher" = slurm ]; then
    exec env SLURM_PROCID=$number SLURM_NTASKS=$count SLURM_STEP_ID=0 SLURM_STEP_NODELIST=localhost SLURM_JOB_ID=$$ "$@"
  else
    exec env RANK=$number WORLD_SIZE=$count MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 20000)) "$@"
  fi
}
others=""
next=1
while [ "$next" -lt "$count" ]; do
  rank "$next" "$@" &
  others="$others $!"
  next=$((next + 1))
done
(rank 0 "$@")
result=$?
for process in $others; do
  wait "$process" || result=1
done
exit $result
