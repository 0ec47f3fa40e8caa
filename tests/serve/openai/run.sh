#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: run.sh MAGI2 DIRECTORY. Installs OpenAI's client in DIRECTORY and runs client.mjs there; 77 without npm.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
command -v npm >/dev/null || { echo "skipped: no npm"; exit 77; }
rm -rf "$2" && mkdir -p "$2"
cp "$here"/package.json "$here"/package-lock.json "$here"/client.mjs "$2"
cd "$2"
npm ci --silent --no-audit --no-fund || { [ -z "${CI:-}" ] || exit 1; echo "skipped: npm cannot fetch the client"; exit 77; }
exec node client.mjs "$1" "$2"
