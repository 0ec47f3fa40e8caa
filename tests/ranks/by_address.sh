#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# by_address.sh COUNT PROGRAM ARGUMENT…: COUNT processes that meet by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
# Fails when one of them does.
count=$1
shift
unset OMPI_COMM_WORLD_SIZE
export WORLD_SIZE="$count" MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 20000))
others=""
rank=1
while [ "$rank" -lt "$count" ]; do
  RANK=$rank "$@" &
  others="$others $!"
  rank=$((rank + 1))
done
RANK=0 "$@"
result=$?
for process in $others; do
  wait "$process" || result=1
done
exit $result
