#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# serve.sh RANKS PROGRAM: the server over ranks makes the clip of the server on one, goes on after a cancelled job, and
# leaves nothing behind when it is told to stop. Where a rank is lost, jobs wait for the next start.
set -u
ranks=$1 program=$2
command -v curl > /dev/null || { echo "curl is not installed"; exit 77; }
. "$(dirname "$0")/launch.sh"
work=$(mktemp -d)
launcher=""
trap '[ -n "$launcher" ] && kill -9 $launcher 2> /dev/null; rm -rf "$work"' EXIT
lose() { echo "$*"; cat "$work"/*.log; exit 1; }
"$program" init "$work/root" > "$work/init.log" 2>&1 || lose "no tiny root"

start() { # name, launcher's words: sets launcher and url
  local name=$1
  shift
  "$@" "$program" serve -m "$work/root" --data "$work/$name" --port 0 --device "$device" > "$work/$name.log" 2>&1 &
  launcher=$!
  local port=""
  for _ in $(seq 600); do
    port=$(sed -n 's/.*"port":\([0-9]*\).*/\1/p' "$work/$name.log" | head -1)
    [ -n "$port" ] && break
    sleep 0.1
  done
  [ -n "$port" ] || lose "$name never listened"
  url=http://127.0.0.1:$port/v1/videos
}
field() { sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p" | head -1; }
create() { # steps, size, seconds
  curl -s "$url" -H 'Content-Type: application/json' \
    -d "{\"prompt\":\"A fox.\",\"size\":\"$2\",\"seconds\":\"$3\",\"num_inference_steps\":$1}" | field id
}
create_short() { create 3 64x48 0.4; }
create_long() { if [ "$device" = cpu ]; then create 80 64x48 0.4; else create 200 448x256 10; fi; }
wait_for() { # id, status
  local now=""
  for _ in $(seq 1200); do
    now=$(curl -s "$url/$1" | field status)
    [ "$now" = "$2" ] && return
    case "$now" in queued | in_progress) sleep 0.05 ;; *) break ;; esac
  done
  lose "$1 is \"$now\" and not $2"
}
clip() { # file
  local id
  id=$(create_short)
  [ -n "$id" ] || lose "no job was made"
  wait_for "$id" completed
  curl -s "$url/$id/content" -o "$1"
  [ -s "$1" ] || lose "no clip came"
}

start alone env
clip "$work/alone.mp4"
kill -TERM $launcher
wait $launcher || lose "the server on one rank ended with $?"

start together "${ranks_launcher[@]}"
clip "$work/together.mp4"
cmp "$work/alone.mp4" "$work/together.mp4" || lose "the clips differ"
long=$(create_long)
wait_for "$long" in_progress
sleep 0.3
curl -s -X POST "$url/$long/cancel" > /dev/null
wait_for "$long" cancelled
clip "$work/after.mp4"
cmp "$work/alone.mp4" "$work/after.mp4" || lose "the clip after a cancelled one differs"

all=$(pgrep -P $launcher)
kill -TERM "$(rank_of $launcher 0)"
end_after 60 $launcher &
wait $launcher
result=$?
launcher=""
[ $result -eq 0 ] || lose "the server over ranks ended with $result"
for process in $all; do
  [ ! -d "/proc/$process" ] || lose "process $process is left"
done
ls "$work/together/files"
[ "$(find "$work/together/files" -name '*partial*' | wc -l)" -eq 0 ] || lose "a partial file is left"

start lost "${ranks_launcher[@]}"
long=$(create_long)
short=$(create_short)
wait_for "$long" in_progress
sleep 0.3
kill -9 "$(rank_of $launcher 1)"
end_after 60 $launcher &
wait $launcher && lose "the server that lost a rank ended with 0"
launcher=""
start lost env
wait_for "$long" completed
wait_for "$short" completed
curl -s "$url/$short/content" -o "$work/waited.mp4"
cmp "$work/alone.mp4" "$work/waited.mp4" || lose "the clip that waited for the next start differs"
