#!/usr/bin/env bash
# Compiles every kernel with NVRTC for each supported NVIDIA architecture, or for those in CAPABILITIES. Needs no card: the
# sources come from the example `sources`, NVRTC and CUDA's headers from PyPI. Arguments are passed on to the cargo command, for
# instance its features.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../../target}
folder=$target/nvrtc
read -ra capabilities <<<"${CAPABILITIES:-75 80 89 90 100}"
if [ ! -e "$folder/packages/done" ]; then
    python3 -m pip install --quiet --no-deps --target "$folder/packages" \
        nvidia-cuda-nvrtc==13.5.37 nvidia-cuda-runtime==13.5.37 nvidia-cuda-crt==13.5.37 nvidia-cuda-cccl==13.3.5.0.6
    touch "$folder/packages/done"
fi
arguments=("$@")
[ $# -gt 0 ] || arguments=(-p riverrun-gpu-sim --features alone)
cargo build --example sources "${arguments[@]}"
rm -rf "$folder/sources"
for capability in "${capabilities[@]}"; do
    "$target/debug/examples/sources" "$folder/sources/$capability" --card "$capability" --sample
done
python3 "$here/nvrtc.py" "$folder/packages/nvidia/cu13" "$folder/sources" "${capabilities[@]}"
