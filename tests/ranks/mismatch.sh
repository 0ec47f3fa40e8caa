#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# mismatch.sh PROGRAM: ranks with different checkpoints, configurations or options are told so before the first step.
set -u
program=$1
export OMP_NUM_THREADS=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$program" init "$work/a" > /dev/null 2>&1 || exit 1
cp -r "$work/a" "$work/weights"
cp -r "$work/a" "$work/config"
index=$(ls "$work"/weights/preview/*.json "$work"/weights/preview/*.safetensors 2>/dev/null | head -1)
echo >> "$index"
sed -i 's/"top_k": *[0-9]*/"top_k": 1/' "$work/config/config.json"
run() { # expected text; options of rank 1
  local expected=$1
  shift
  mpirun --allow-run-as-root --oversubscribe \
    -n 1 "$program" generate -m "$work/a" --device cpu --sp 2 -p x -o "$work/clip.mp4" --steps 1 --seconds 0.4 : \
    -n 1 "$program" generate --device cpu -p x -o "$work/clip.mp4" --steps 1 --seconds 0.4 "$@" > "$work/log" 2>&1
  if [ $? -eq 0 ] || ! grep -a -q "rank 1 has another $expected than rank 0" "$work/log" || [ -e "$work/clip.mp4" ]; then
    echo "expected: $expected"; cat "$work/log"; exit 1
  fi
}
run "preview checkpoint" -m "$work/weights" --sp 2
run "configuration" -m "$work/config" --sp 2
run "choice of --sp, --cfg and --ep" -m "$work/a" --cfg 2
