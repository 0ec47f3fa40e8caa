#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# same_clip.sh PROGRAM RANKS OPTIONS…: a clip from text and a refined one from an image, each made by one rank and by RANKS
# with OPTIONS: files and latents are byte for byte the same, and the statistics tell what each rank did.
set -eu
program=$1 ranks=$2
shift 2
. "$(dirname "$0")/launch.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$program" init "$work/root" > /dev/null 2>&1
common=(generate -m "$work/root" --device "$device" -W 64 -H 64 --seconds 0.4 --steps 2)
make() { # name, then options
  local name=$1
  shift
  "${launch[@]}" "$program" "${common[@]}" -o "$work/$name.mp4" --save-latents "$work/$name" --stats "$work/$name.json" \
    "$@" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
}
text=(-p "A fox.")
image=(-p "The sun of <Figure 1> sets." -i "$work/root/example.png" --refine 96x64 --refiner-steps 1)
launch=(env)
make text-one "${text[@]}"
make image-one "${image[@]}"
launch=("${ranks_launcher[@]}")
make text-many "${text[@]}" "$@"
make image-many "${image[@]}" "$@"
for kind in text image; do
  cmp "$work/$kind-one.mp4" "$work/$kind-many.mp4"
  cmp "$work/$kind-one/latents.safetensors" "$work/$kind-many/latents.safetensors"
done
grep -q '"tokens_share"' "$work/text-many.json" && grep -q '"weights_share"' "$work/text-many.json"
[ "$(grep -c '"bytes_sent": [1-9]' "$work/text-many.json")" -eq "$ranks" ]
