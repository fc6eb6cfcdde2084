#!/usr/bin/env bash
# Checks and measures riverrun on two GPUs of one machine, by NCCL, with PyTorch beside it.
#
#   benches/ranks.sh [--out DIR] [--peers no] PART...
#
# Parts: losses faults start context collectives train; `all` is every one of them.
#
# RIVERRUN is the program [default: target/release/riverrun], TEXT a text to train on [default: Python's standard library, a part of it].
# Everything that is printed goes to ranks.txt in the folder (--out, else $OUT, else ./ranks), too. Exit code 1 if anything failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

out=${OUT:-ranks} peers=yes parts=() failures=()
while [ $# -gt 0 ]; do
    case $1 in
        --out) out=$2; shift ;;
        --peers) peers=$2; shift ;;
        all) parts+=(losses faults start context collectives train) ;;
        losses | faults | start | context | collectives | train) parts+=("$1") ;;
        *) sed -n '2,9s/^# \{0,1\}//p' "$0"; [ "$1" = --help ] && exit 0; exit 2 ;;
    esac
    shift
done

riverrun=$(realpath "${RIVERRUN:-target/release/riverrun}")
[ -x "$riverrun" ] || { echo "no program at $riverrun; set RIVERRUN" >&2; exit 2; }
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=$out/ranks.txt
# Multicast in the switch is a setting of the machine's, which not every machine has.
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
if [ -z "${RIVERRUN_NCCL:-}" ]; then
    RIVERRUN_NCCL=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib/libnccl.so.2")' 2>/dev/null) && export RIVERRUN_NCCL
fi
text=${TEXT:-$work/text.txt}
[ -s "$text" ] || python3 - "$text" <<'PY'
import argparse, ast, difflib, inspect, sys
code = "".join(inspect.getsource(module) for module in (argparse, ast, difflib))
open(sys.argv[1], "w").write("".join(c for c in code if ord(c) < 128))
PY

say() { echo "$@" | tee -a "$log"; }

# run NAME SECONDS COMMAND...: one command, its output to the log, its failure kept.
run() {
    local name=$1 seconds=$2 start=$SECONDS code
    shift 2
    say "== $name: ${*//"$riverrun"/riverrun}"
    timeout --kill-after=10 "$seconds" "$@" </dev/null 2>&1 | tee -a "$log"
    code=${PIPESTATUS[0]}
    say "-- exit $code, $((SECONDS - start)) s"
    [ "$code" -eq 0 ] || failures+=("$name exit $code")
}

# train NAME RANKS OPTIONS...: a short run on so many GPUs.
train() {
    local name=$1 ranks=$2 start=("$riverrun")
    shift 2
    [ "$ranks" -eq 1 ] || start+=(launch --gpus "$ranks" --)
    run "$name" 90 "${start[@]}" train "$text" --width 128 --layers 2 --context 128 --batch 32 --steps 40 --eval-every 20 -q \
        --device "$([ "$ranks" -eq 1 ] && echo cuda:0 || echo cuda)" --out "$work/$name" "$@"
}

# losses A B MOST: the largest difference between the losses of two runs, over all reports.
losses() {
    python3 - "$work/$1/metrics.jsonl" "$work/$2/metrics.jsonl" "$3" <<'PY' | tee -a "$log"
import json, sys
def read(path):
    return [value for line in open(path) for key, value in sorted(json.loads(line).items()) if "loss" in key and value is not None]
a, b = map(read, sys.argv[1:3])
off = max(abs(x - y) for x, y in zip(a, b, strict=True))
names = [path.split("/")[-2] for path in sys.argv[1:3]]
print("losses of", *names, f"{len(a)} differ by {off:.3g} at most")
sys.exit(off > float(sys.argv[3]))
PY
    [ "${PIPESTATUS[0]}" -eq 0 ] || failures+=("losses of $1 and $2")
}

part_losses() {
    train one 1 --dtype f32
    train one-in-parts 1 --dtype f32 --accumulate 2
    train two 2 --dtype f32
    train two-unrecorded 2 --dtype f32 --no-graph
    train two-sharded 2 --dtype f32 --shard-optimizer
    train two-along-time 2 --dtype f32 --context-parallel 2
    train gru 1 --dtype f32 --model gru --accumulate 2
    train gru-two 2 --dtype f32 --model gru
    train bf16 1 --dtype bf16
    train bf16-two 2 --dtype bf16
    losses two one-in-parts 1e-6
    losses two two-unrecorded 0
    losses two two-sharded 1e-6
    losses one two-along-time 1e-6
    losses gru gru-two 1e-6
    losses bf16 bf16-two 1e-2
}

# A rank is killed after some steps: the seconds until all have ended.
part_faults() {
    local n pid rank code
    for n in 1 2 3; do
        "$riverrun" launch --gpus 2 -- train "$text" --width 256 --layers 4 --context 256 --batch 64 --steps 1000000 \
            --device cuda --out "$work/killed-$n" >"$work/killed.txt" 2>&1 &
        pid=$!
        sleep $((5 + n))
        rank=$(pgrep -P "$pid" | tail -n 1)
        local start
        start=$(date +%s.%N)
        kill -KILL "$rank"
        wait "$pid"
        code=$?
        say "a killed rank: exit $code after $(echo "$start $(date +%s.%N)" | awk '{ printf "%.2f", $2 - $1 }') s; $(grep error "$work/killed.txt" | head -n 1)"
        [ "$code" -eq 1 ] || failures+=("a killed rank: exit $code")
    done
}

# The seconds of four steps, with kept kernels, on one GPU and on two.
part_start() {
    local n ranks start line
    for n in 0 1 2 3 4; do
        line="start, four steps:"
        for ranks in 1 2; do
            local command=("$riverrun")
            [ "$ranks" -eq 1 ] || command+=(launch --gpus 2 --)
            start=$(date +%s.%N)
            "${command[@]}" train "$text" --width 256 --layers 4 --context 256 --batch 64 --steps 4 -q \
                --device "$([ "$ranks" -eq 1 ] && echo cuda:0 || echo cuda)" >"$work/start.txt" 2>&1 || failures+=("start exit $?")
            line+=" $ranks rank $(echo "$start $(date +%s.%N)" | awk '{ printf "%.2f", $2 - $1 }') s"
        done
        # The first compiles.
        [ "$n" -eq 0 ] || say "$line"
    done
}

part_context() {
    run context 120 "$riverrun" launch --gpus 2 -- bench context --device cuda --shapes 1x1048576x1024 --groups 1,4,8,16,32 --budget 0.3
}

part_collectives() {
    run collectives 120 "$riverrun" launch --gpus 2 -- bench collectives --bytes 4096,1048576,16777216,67108864,1073741824 --device cuda --budget 0.2
    [ "$peers" = no ] || run torch-collectives 120 torchrun --nproc-per-node 2 benches/peers/spread.py collectives
}

part_train() {
    local n
    for n in 1 2 3; do
        run "train-$n" 180 "$riverrun" launch --gpus 2 -- bench train --graph --steps 100 --dtypes bf16 --device cuda --shapes 512x6x64x1024x65,768x12x16x1024x50257
    done
    [ "$peers" = no ] || run torch-train 240 torchrun --nproc-per-node 2 benches/peers/spread.py train --steps 100
}

nvidia-smi -L 2>&1 | tee -a "$log"
for part in "${parts[@]}"; do "part_$part"; done
[ ${#failures[@]} -eq 0 ] || { say "failed: ${failures[*]}"; exit 1; }
