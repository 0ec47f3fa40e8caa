# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts beside it: ranks on CPUs by mpirun, with MAGI2_TEST_DEVICE=cuda on GPUs, where they meet by address.
device=${MAGI2_TEST_DEVICE:-cpu}
export OMP_NUM_THREADS=1
if [ "$device" = cpu ]; then
  ranks_launcher=(mpirun --allow-run-as-root --oversubscribe -n "$ranks")
else
  ranks_launcher=("$(dirname "$0")/by_address.sh" "$ranks")
fi
# rank_of LAUNCHER NUMBER: that rank's process.
rank_of() {
  local process
  for process in $(pgrep -P "$1"); do
    tr '\0' '\n' < "/proc/$process/environ" | grep -qxE "(OMPI_COMM_WORLD_RANK|RANK)=$2" && echo "$process"
  done
}
# end_after SECONDS PROCESS: in the background, which it leaves when the process does; fails when it had to end it.
end_after() {
  timeout "$1" tail --pid="$2" -s 0.1 -f /dev/null || ! kill -9 "$2" 2> /dev/null
}
