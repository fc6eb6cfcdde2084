#!/usr/bin/env bash
# Brings g2p_en/checkpoint20.npz, 3 MB, from the Python package g2p-en (Apache-2.0) into the current folder.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
python3 -m pip download --quiet --no-deps --dest "$folder" g2p-en==2.1.0
python3 -m zipfile -e "$folder"/g2p_en-2.1.0-*.whl "$folder"
mkdir -p g2p_en
cp "$folder/g2p_en/checkpoint20.npz" g2p_en/
