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

# `wgpu` is the feature whose compiler and driver run anywhere, `cuda` has the simulated GPU. The kernels need no Burn, whose
# GPU backends take three times as long to build as CubeCL alone. One set of features each, or Cargo builds everything again.
kernels=(-p riverrun-testkit -p riverrun-gpu-sim --features "riverrun-testkit/wgpu,riverrun-gpu-sim/cuda")
gpu=(--workspace --features "riverrun-cli/cuda,riverrun-cli/wgpu,riverrun-gpu-sim/cuda")

software_gpu() {
    if ! ls /usr/share/vulkan/icd.d/*.json >/dev/null 2>&1; then
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq mesa-vulkan-drivers libvulkan1
    fi
}

# nvrtc ARCHITECTURE...: compiles the CUDA source of every kernel, without a device.
nvrtc() {
    if command -v python3 >/dev/null && python3 -m pip --version >/dev/null 2>&1; then
        CAPABILITIES="$*" crates/riverrun-gpu-sim/check_nvrtc.sh "${kernels[@]}"
    else
        echo "skipped NVRTC: there is no pip" | tee -a "$log"
    fi
}
