#!/usr/bin/env bash
# Builds the wheel, with the command `riverrun` for CPUs in it, into the folder that the first argument names. Needs a Rust toolchain,
# and python3, or what PYTHON names, with the packages maturin and wheel. With ziglang and cargo-zigbuild too, zig links it for
# manylinux2014, glibc 2.17; else it needs a glibc as new as this machine's.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$1
python=${PYTHON:-python3}
target=${CARGO_TARGET_DIR:-$here/target}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH="$(dirname "$(command -v "$python")"):$PATH"
program=(build) module=(--target-dir "$target") binaries=$target/release
if [ "$(uname -s)" = Linux ] && "$python" -m ziglang version >/dev/null 2>&1 && command -v cargo-zigbuild >/dev/null; then
    triple=$(uname -m)-unknown-linux-gnu
    program=(zigbuild --target "$triple.2.17") binaries=$target/$triple/release
    # Their flags differ: in one folder each would build everything again.
    module=(--zig --compatibility manylinux2014 --target-dir "$target/module")
else
    echo "without ziglang and cargo-zigbuild: the wheel needs this machine's glibc" >&2
fi
cargo "${program[@]}" --release --locked --manifest-path "$here/../../Cargo.toml" --target-dir "$target" -p riverrun-cli --bin riverrun
"$python" -m maturin build "${module[@]}" --release --locked --manifest-path "$here/Cargo.toml" --out "$work"
"$python" -m wheel unpack --dest "$work/unpacked" "$work"/*.whl
# What lies there is installed beside the interpreter.
name=$(ls "$work/unpacked")
mkdir -p "$work/unpacked/$name/$name.data/scripts" "$out"
cp "$binaries/riverrun" "$work/unpacked/$name/$name.data/scripts/"
"$python" -m wheel pack --dest-dir "$out" "$work/unpacked/$name"
