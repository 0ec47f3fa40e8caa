#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: run.sh MAGI2 DIRECTORY. Drives the page in Chromium; screenshots stay in DIRECTORY. 77 without npm or Chromium.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
command -v npm >/dev/null || { echo "skipped: no npm"; exit 77; }
chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || { echo "skipped: no Chromium"; exit 77; }
rm -rf "$2" && mkdir -p "$2"
cp "$here"/package.json "$here"/package-lock.json "$here"/*.mjs "$2"
cd "$2"
npm ci --silent --no-audit --no-fund || { [ -z "${CI:-}" ] || exit 1; echo "skipped: npm cannot fetch the driver"; exit 77; }
MAGI2=$1 CHROMIUM=$chromium exec node --test --test-concurrency=1 page.test.mjs
