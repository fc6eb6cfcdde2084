# What `run` and `nightly` share. To be sourced in the repository's root.
# shellcheck shell=bash
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0
export XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR:-/tmp}"
step() { printf '\n== %s (%ss)\n' "$1" "$SECONDS"; }

# Runs a command of tests, and keeps what it prints for the count at the end: tests print `skipped` for what they cannot do
# on this machine.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
tests() {
    echo "+ $*"
    "$@" 2>&1 | tee -a "$log" | { grep -Ev '^---- .* stdout ----$|^$' || true; }
}

count() {
    step "done"
    grep -E '^skipped' "$log" | sort | uniq -c || true
    awk '/^test result:/ { passed += $4; failed += $6 } /^skipped/ { skipped++ }
        END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }' "$log"
}

# One set of features for each build, or Cargo builds everything again. `wgpu` is the feature whose compiler and driver run
# anywhere, `cuda` has the simulated GPU. The kernels need no Burn, whose GPU backends take three times as long to build as CubeCL
# alone.
# shellcheck disable=SC2034
{
simulator=(-p riverrun-gpu-sim --features "riverrun-gpu-sim/alone")
gpu=(--workspace --features "riverrun-cli/cuda,riverrun-cli/wgpu,riverrun-gpu-sim/cuda,riverrun-c/cuda")
every=(--workspace --features "riverrun-cli/cuda,riverrun-cli/rocm,riverrun-cli/vulkan,riverrun-cli/metal,riverrun-cli/webgpu,riverrun-cli/wgpu,riverrun-gpu-sim/cuda,riverrun-c/cuda")
}

software_gpu() {
    if ! ls /usr/share/vulkan/icd.d/*.json >/dev/null 2>&1; then
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq mesa-vulkan-drivers libvulkan1
    fi
}

# nvrtc ARCHITECTURE...: compiles the CUDA source of every kernel, without a device.
nvrtc() {
    if command -v python3 >/dev/null && python3 -m pip --version >/dev/null 2>&1; then
        CAPABILITIES="$*" crates/riverrun-gpu-sim/check_nvrtc.sh "${simulator[@]}"
    else
        echo "skipped NVRTC: there is no pip" | tee -a "$log"
    fi
}

# Runs what riverrun-onnx writes in ONNX Runtime, and what ONNX's own tests hold in riverrun. All by the build of the workspace: one of
# a package alone has other features, and is built again.
onnx() {
    local target folder
    mkdir -p "${CARGO_TARGET_DIR:-target}"
    # Tests run in the folder of their crate.
    target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
    folder="$target/onnx"
    rm -rf "$folder" && mkdir -p "$folder/models"
    if ! python3 -m venv "$folder/venv" 2>/dev/null || ! "$folder/venv/bin/pip" install -q onnx onnxruntime; then
        echo "skipped ONNX Runtime: there is no venv, or no package" | tee -a "$log"
        return
    fi
    cargo build --workspace --example=test_data
    "$target/debug/examples/test_data" "$folder/models"
    "$folder/venv/bin/python" crates/riverrun-onnx/check.py "$folder/models"
    local package=libonnx-testdata
    if command -v dpkg >/dev/null && (cd "$folder" && { apt-get download -qq $package || { apt-get update -qq && apt-get download -qq $package; }; }); then
        dpkg -x "$folder/$package"_*.deb "$folder/standard"
        ONNX_TEST_DATA="$folder/standard/usr/share/libonnx-testdata/data/node" \
            tests cargo test --workspace --test=import -- --show-output
    else
        echo "skipped ONNX's test data: they are a package of Debian" | tee -a "$log"
    fi
}

# Reads an event file by TensorBoard's own reader.
tensorboard() {
    local target="${CARGO_TARGET_DIR:-target}" folder="${CARGO_TARGET_DIR:-target}/tensorboard"
    rm -rf "$folder" && mkdir -p "$folder"
    if ! python3 -m venv "$folder/venv" 2>/dev/null || ! "$folder/venv/bin/pip" install -q tensorboard; then
        echo "skipped TensorBoard: there is no venv, or no package" | tee -a "$log"
        return
    fi
    cargo build --workspace --bin riverrun
    "$target/debug/riverrun" -q train --task xor --tensorboard --device cpu --out "$folder/run"
    "$folder/venv/bin/python" crates/riverrun-cli/tests/check_tensorboard.py "$folder/run"
}
