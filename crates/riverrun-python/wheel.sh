#!/usr/bin/env bash
# Builds the wheel, with the command `riverrun` for CPUs in it, into the folder that the first argument names. Needs a Rust toolchain,
# and python3, or what PYTHON names, with the packages maturin and wheel.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$1
python=${PYTHON:-python3}
target=${CARGO_TARGET_DIR:-$here/target}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cargo build --release --locked --manifest-path "$here/../../Cargo.toml" --target-dir "$target" -p riverrun-cli --bin riverrun
"$python" -m maturin build --release --locked --manifest-path "$here/Cargo.toml" --target-dir "$target" --out "$work"
"$python" -m wheel unpack --dest "$work/unpacked" "$work"/*.whl
# What lies there is installed beside the interpreter.
name=$(ls "$work/unpacked")
mkdir -p "$work/unpacked/$name/$name.data/scripts" "$out"
cp "$target/release/riverrun" "$work/unpacked/$name/$name.data/scripts/"
"$python" -m wheel pack --dest-dir "$out" "$work/unpacked/$name"
