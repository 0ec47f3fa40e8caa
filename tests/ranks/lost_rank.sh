#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# lost_rank.sh SIGNAL RANKS PROGRAM: starts a long run over RANKS ranks, sends SIGNAL to one of them (each in turn) at a
# random moment, and checks how it ends: soon, with a message that names the rank, nothing running, nothing written.
# SIGNAL STARVE: from then on that rank runs for some milliseconds a second.
set -u
signal=$1 ranks=$2 program=$3
. "$(dirname "$0")/launch.sh"
export MAGI2_RANK_DEADLINE=${MAGI2_RANK_DEADLINE:-6}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$program" init "$work/root" > "$work/init.log" 2>&1 || { cat "$work/init.log"; exit 1; }
# A GPU starts more slowly and computes faster.
size=(--seconds 2) moments=1
[ "$device" = cpu ] || size=(--preset 272p) moments=4
for rank in $(seq 0 $((ranks - 1))); do
  mkdir "$work/out"
  "${ranks_launcher[@]}" "$program" generate -m "$work/root" -p "A fox." -o "$work/out/clip.mp4" \
    --save-latents "$work/out" --stats "$work/out/stats.json" "${size[@]}" --steps 1000 \
    --device "$device" > "$work/log" 2>&1 &
  launcher=$!
  sleep "$((1 + RANDOM % moments)).$((RANDOM % 10))"
  victim=$(rank_of $launcher "$rank")
  [ -n "$victim" ] || { echo "rank $rank was not found"; cat "$work/log"; exit 1; }
  all=$(pgrep -P $launcher)
  if [ "$signal" = STARVE ]; then
    (while kill -STOP "$victim" 2> /dev/null; do sleep 1; kill -CONT "$victim"; sleep 0.003; done) 2> /dev/null &
  else
    kill "-$signal" "$victim"
  fi
  start=$(date +%s)
  end_after 60 $launcher & guard=$!
  wait $launcher
  result=$?
  wait $guard || result=0  # too late
  took=$(($(date +%s) - start))
  echo "rank $rank got $signal: run ended with $result after $took s: $(grep -a -m1 '^magi2: ' "$work/log")"
  [ $result -ne 0 ] || { cat "$work/log"; exit 1; }
  grep -a -q "rank $rank" "$work/log" || { cat "$work/log"; exit 1; }
  for process in $all; do
    if [ -d "/proc/$process" ] && ! grep -q "^State:.Z" "/proc/$process/status" 2>/dev/null; then
      echo "process $process is left"; exit 1
    fi
  done
  [ -z "$(ls -A "$work/out")" ] || { echo "left behind:"; ls -A "$work/out"; exit 1; }
  rm -rf "$work/out"
done
