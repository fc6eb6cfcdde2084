#!/usr/bin/env bash
# Checks and measures riverrun on a GPU, part by part, with PyTorch beside it.
#
#   benches/card.sh [--out DIR] [--device cuda:0] [--limit SECONDS] PART...
#
# Parts: verify long stress sanitizer memory recurrence rows linear cell step decode train train_cells train_attention start generate rollout
#        encoder rssm attention hybrid; `all` is every one of them. `--peers no` leaves PyTorch out; PEERS names
# the forms of PyTorch's training steps, but for those of train_attention [default: the fastest one, a CUDA graph].
#
# RIVERRUN is the program [default: target/release/riverrun], COMMIT the commit it was built from [default: that of the
# checkout]. The folder (--out, else $OUT, else ./card) receives
#   card.log       everything that was printed, a heading for every command
#   results.json   what the commands wrote with --json, by part and command
#   tables.md      riverrun beside its peers
#   summary.txt    a line for every part: done or failed, seconds, what failed
# A part that fails does not stop the next one; every command has a limit of time. Exit code 1 if anything failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

out=${OUT:-card} device=cuda:0 limit=540 peers=yes parts=()
while [ $# -gt 0 ]; do
    case $1 in
        --out) out=$2; shift ;;
        --device) device=$2; shift ;;
        --limit) limit=$2; shift ;;
        --peers) peers=$2; shift ;;
        -h | --help) sed -n '2,15s/^# \{0,1\}//p' "$0"; exit 0 ;;
        all) parts+=(verify stress sanitizer memory recurrence rows linear cell step decode train train_cells train_attention start generate
            rollout encoder rssm attention hybrid long) ;;
        *) parts+=("$1") ;;
    esac
    shift
done
[ ${#parts[@]} -gt 0 ] || { sed -n '2,15s/^# \{0,1\}//p' "$0"; exit 2; }

riverrun=${RIVERRUN:-target/release/riverrun}
[ -x "$riverrun" ] || { echo "no program at $riverrun; set RIVERRUN" >&2; exit 2; }
# The rules in code, whatever was tuned on this machine.
export RIVERRUN_TUNING=off
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=$out/card.log
: >>"$log"

# run NAME SECONDS COMMAND...: one command, its output to the log and the terminal, its failure kept for the summary.
failures=()
run() {
    local name=$1 seconds=$2 start=$SECONDS code
    shift 2
    [ "$seconds" -le "$limit" ] || seconds=$limit
    printf '\n== %s: %s\n' "$name" "$*" | tee -a "$log"
    timeout --kill-after=10 "$seconds" "$@" </dev/null 2>&1 | tee -a "$log"
    code=${PIPESTATUS[0]}
    printf -- '-- %s: exit %s, %s s\n' "$name" "$code" "$((SECONDS - start))" | tee -a "$log"
    [ "$code" -eq 0 ] || failures+=("$name exit $code")
    return "$code"
}

# measured NAME SECONDS ARGS...: a riverrun command that writes JSON.
measured() {
    local name=$1 seconds=$2
    shift 2
    run "$name" "$seconds" "$riverrun" "$@" --device "$device" --json "$work/$name.json"
}

# peer NAME SECONDS SCRIPT ARGS...: a script of benches/peers that writes JSON.
peer() {
    local name=$1 seconds=$2
    shift 2
    [ "$peers" = yes ] || return 0
    if ! python3 -c 'import torch' 2>/dev/null; then
        echo "$name: skipped, there is no PyTorch" | tee -a "$log"
        return 0
    fi
    run "$name" "$seconds" python3 "benches/peers/$1" "${@:2}" --json "$work/$name.json"
}

# table HEADING NAME...: the table of the files that are there.
table() {
    local heading=$1 name files=()
    shift
    for name in "$@"; do
        [ -s "$work/$name.json" ] && files+=("$work/$name.json")
    done
    [ ${#files[@]} -gt 0 ] || return 0
    { printf '\n## %s\n\n' "$heading"; python3 benches/peers/table.py "${files[@]}"; } >>"$out/tables.md" 2>>"$log" \
        || failures+=("table of $heading")
}

# has WORDS...: whether the program has this command.
has() {
    "$riverrun" "$@" --help >/dev/null 2>&1 || { echo "skipped: this program has no \`$*\`" | tee -a "$log"; return 1; }
}

# verifies OP: whether the program can verify this operation.
verifies() {
    local help
    help=$("$riverrun" verify --help 2>&1)
    grep -qw -- "$1" <<<"$help"
}

part_verify() {
    measured verify 300 verify
}

part_long() {
    measured verify-long 1800 verify --long
}

part_stress() {
    verifies stress || { echo "skipped: no stress" | tee -a "$log"; return 0; }
    local n
    for n in $(seq 20); do
        measured "stress-$n" 120 verify --op stress --long
    done
}

# Memory errors in every operation, races where shared memory is used. A part of `verify` a process, for the sanitizer
# watches one process; half a dozen of them beside each other, each with a log of its own.
part_sanitizer() {
    local tool op all=${SANITIZER_OPS:-norm loss optimizer linear embedding recurrence:raw recurrence:min-gru cell:gru cell:lstm attention rssm rollout encoder refill matrix-state attention-step delta-step few-rows draw}
    command -v compute-sanitizer >/dev/null || PATH=$PATH:/usr/local/cuda/bin
    command -v compute-sanitizer >/dev/null || { echo "skipped: no compute-sanitizer" | tee -a "$log"; return 0; }
    for tool in memcheck racecheck; do
        for op in $all; do
            local words=(--op "${op%%:*}") name=$tool-${op/:/-} seconds=$((limit < 240 ? limit : 240)) dtype=${SANITIZER_DTYPE:-bf16}
            # These have f32 alone.
            case $op in rollout | encoder | refill) dtype=f32 ;; esac
            [ "$op" = "${op%%:*}" ] || words+=(--only "${op#*:}")
            verifies "${op%%:*}" || continue
            while [ "$(jobs -rp | wc -l)" -ge 6 ]; do sleep 0.2; done
            {
                timeout --kill-after=10 "$seconds" compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 20 \
                    "$riverrun" verify --json-rows --device "$device" --dtype "$dtype" "${words[@]}" \
                    >"$work/$name.log" 2>&1
                echo "$?" >"$work/$name.code"
            } &
        done
    done
    wait
    for name in "$work"/{memcheck,racecheck}-*.code; do
        [ -s "$name" ] || continue
        tool=$(basename "$name" .code)
        printf '\n== %s\n%s\n-- exit %s\n' "$tool" "$(tail -n 40 "$work/$tool.log")" "$(cat "$name")" | tee -a "$log"
        [ "$(cat "$name")" -eq 0 ] || failures+=("$tool exit $(cat "$name")")
    done
}

# No memory left is one line and exit code 2.
part_memory() {
    printf '\n== memory\n' | tee -a "$log"
    timeout 120 "$riverrun" train --device "$device" --width 2048 --layers 12 --batch 4096 --context 8192 --steps 2 \
        --out "$work/memory" >"$work/memory.out" 2>"$work/memory.err"
    local code=$?
    cat "$work/memory.out" "$work/memory.err" | tee -a "$log"
    [ "$code" -eq 2 ] || failures+=("memory exit $code")
    [ "$(grep -c . "$work/memory.err")" -le 2 ] || failures+=("memory: more than a line")
}

part_recurrence() {
    local shapes=4x128x5120,4x1024x5120,4x4096x5120,4x16384x5120,1x65536x1024,1x131072x256,8x16384x64,4x1000x5119
    local gated=64x512x256,64x4096x1024
    measured recurrence-raw 200 bench recurrence --gates raw --dtypes f32,bf16 --shapes "$shapes"
    measured recurrence-gated 200 bench recurrence --gates min-gru,min-lstm,rg-lru --dtypes f32,bf16 --shapes "$gated"
    peer recurrence-torch 240 recurrence.py --gates raw,min-gru --dtypes bf16 --shapes 4x4096x5120,64x512x256 --peers triton
    table "Linear recurrences" recurrence-raw recurrence-gated recurrence-torch
}

part_rows() {
    measured norm 200 bench norm --dtypes f32,bf16
    measured norm-small 100 bench norm --dtypes f32,bf16 --shapes 1024x768,2048x1024,4096x2048
    measured activation 100 bench activation
    measured loss 200 bench loss --dtypes f32,bf16
}

part_linear() {
    measured linear 400 bench linear --dtypes bf16,f32 --routes choice \
        --shapes 16384x256x512,16384x256x1024,16384x1024x256,65536x512x1024,65536x512x2048,65536x2048x512,16384x768x3072,16384x768x50257,16384x768x50304,512x1024x2048,1024x2048x4096,2048x4096x8192
}

part_cell() {
    local shapes=1x1024x256,16x1024x256,64x1024x256,16x1024x512,64x1024x512,16x1024x1024,64x1024x1024,16x1024x2048,64x1024x2048
    measured cell 300 bench cell --alone --cells gru,lstm --dtypes bf16,f16 --budget 0.4 --shapes "$shapes"
    measured cell-heads 200 bench cell --alone --cells gru,lstm --dtypes bf16 --budget 0.4 --shapes 16x1024x1024,16x1024x2048 --heads 1,8
    peer cell-torch 300 cells.py --cells gru,lstm --dtypes bf16,f16 --budget 0.4 --shapes "$shapes"
    table "GRU and LSTM layers" cell cell-heads cell-torch
}

part_step() {
    has bench step || return 0
    measured step 200 bench step
}

part_decode() {
    has bench decode || return 0
    measured decode 120 bench decode --dtypes bf16
    peer decode-torch 120 decode.py
}

part_train() {
    measured train-min-gru 200 bench train --graph --dtypes bf16 --kernels 12
    peer train-torch 500 train.py --routines "${PEERS:-fused-graph}"
    table "Training steps, minGRU" train-min-gru train-torch
}

part_train_cells() {
    local shapes=256x4x64x256x65,512x6x64x1024x65
    measured train-gru 120 bench train --graph --dtypes bf16 --kernels 12 --model gru --shapes $shapes
    measured train-lstm 120 bench train --graph --dtypes bf16 --kernels 12 --model lstm --shapes $shapes
    peer train-torch-cells 240 train.py --routines "${PEERS:-nn.GRU-graph,nn.LSTM-graph}" --shapes $shapes
    table "Training steps, GRU and LSTM" train-gru train-lstm train-torch-cells
}

part_train_attention() {
    local griffin=512x6x64x1024x65,256x3x16x256x65 gpt2=768x12x16x1024x50257
    measured train-griffin 120 bench train --graph --dtypes bf16 --kernels 12 --model griffin --shapes $griffin
    measured train-gpt2 120 bench train --graph --dtypes bf16 --kernels 12 --model gpt2 --shapes $gpt2
    peer train-torch-griffin 300 train.py --routines griffin-fused-graph --shapes $griffin
    peer train-torch-gpt2 150 train.py --routines gpt2-compile-graph --shapes $gpt2
    table "Training steps, Griffin and GPT-2" train-griffin train-gpt2 train-torch-griffin train-torch-gpt2
}

# Seconds to the first step, with an empty cache of kernels and with a kept one.
part_start() {
    local model shape kept
    for model in min-gru gru lstm gpt2 griffin; do
        shape=256x4x64x256x65
        case $model in gpt2 | griffin) shape=256x3x16x256x65 ;; esac
        for kept in empty kept; do
            XDG_CACHE_HOME=$work/cache-$model CUDA_CACHE_PATH=$work/cache-$model/nv \
                measured "start-$model-$kept" 60 bench train --model "$model" --dtypes bf16 --steps 3 --shapes "$shape"
        done
    done
    for kept in empty kept; do
        XDG_CACHE_HOME=$work/cache-rssm CUDA_CACHE_PATH=$work/cache-rssm/nv \
            measured "start-rssm-$kept" 60 bench rssm --sizes 12m --dtypes bf16
    done
}

part_generate() {
    local text=$work/text.txt
    for _ in $(seq 400); do echo "the quick brown fox jumps over the lazy dog; pack my box with five dozen jugs"; done >"$text"
    run generate-train 120 "$riverrun" train "$text" --device "$device" --layers 4 --width 256 --steps 60 --out "$work/model" \
        || return 0
    local tokens start graph
    for tokens in 100 2100; do
        for graph in --graph --no-graph; do
            start=$(date +%s.%N)
            run "generate-$tokens$graph" 120 "$riverrun" generate "$work/model" --device "$device" --prompt "the quick" \
                --tokens "$tokens" "$graph"
            echo "$start $(date +%s.%N)" | awk -v n="$tokens tokens $graph" '{ printf "%s: %.3f s\n", n, $2 - $1 }' | tee -a "$log"
        done
    done
    start=$(date +%s.%N)
    run generate-batch 120 "$riverrun" generate "$work/model" --device "$device" --prompt "the quick" --tokens 2100 --batch 256
    echo "$start $(date +%s.%N)" | awk '{ printf "2100 tokens of 256 samples: %.3f s\n", $2 - $1 }' | tee -a "$log"
    has bench generate || return 0
    run generate-train-wide 120 "$riverrun" train "$text" --device "$device" --layers 6 --width 384 --steps 30 --out "$work/wide" || return 0
    measured generate-steps 120 bench generate "$work/wide" --tokens 8192 --batch 1,8
    measured generate-steps-launched 60 bench generate "$work/wide" --tokens 1024 --no-graph
}

bench_of() {
    has bench "$1" || return 0
    measured "$1" 300 bench "$1"
}

part_rollout() {
    bench_of rollout
    peer rollout-peers 120 rollout.py
}
part_encoder() { bench_of encoder; }
part_rssm() {
    has bench rssm || return 0
    local size
    for size in 12m 50m 200m; do
        measured "rssm-$size" 300 bench rssm --sizes "$size" --dtypes bf16
    done
    peer rssm-torch 300 rssm.py --sizes 12m,50m,200m --dtypes bf16
    table "Recurrent state-space model" rssm-12m rssm-50m rssm-200m rssm-torch
}
part_attention() {
    has bench attention || return 0
    local shapes=4x12x1024x64,8x16x2048x64,2x16x4096x128,2x16x16384x128,2x16x16384x128@1024
    measured attention 400 bench attention --dtypes bf16 --shapes $shapes
    peer attention-torch 400 attention.py --dtypes bf16 --shapes $shapes
    table "Attention" attention attention-torch
}
part_hybrid() {
    has bench hybrid || return 0
    measured hybrid 300 bench hybrid --rungs xor,digits --predictors last-update,linear --seeds 1
    measured hybrid-latency 60 bench hybrid --latency
    # The same losses, with recorded steps and without.
    local graph
    for graph in --graph --no-graph; do
        run "hybrid-train$graph" 60 "$riverrun" train --task xor --hybrid aggressive --device "$device" "$graph" \
            --out "$work/hybrid$graph" --quiet
    done
}

# Everything that was written so far, in one file.
merge() {
    python3 - "$work" "$out/results.json" <<'PYTHON'
import json, pathlib, sys

found = {}
if pathlib.Path(sys.argv[2]).exists():
    found = json.loads(pathlib.Path(sys.argv[2]).read_text())
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
    try:
        found[path.stem] = json.loads(path.read_text())
    except ValueError as error:
        found[path.stem] = {"error": str(error)}
pathlib.Path(sys.argv[2]).write_text(json.dumps(found, indent=1))
PYTHON
}

{ date -u +'%F %T UTC'; echo "commit ${COMMIT:-$(git rev-parse --short HEAD 2>/dev/null)}"; nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null; "$riverrun" --version; } | tee -a "$log"
all_good=0
for part in "${parts[@]}"; do
    failures=()
    start=$SECONDS
    if declare -F "part_$part" >/dev/null; then
        "part_$part"
    else
        failures+=("no such part")
    fi
    merge || failures+=("results.json")
    line="$part: done"
    if [ ${#failures[@]} -gt 0 ]; then
        all_good=1
        line="$part: FAILED ($(IFS=';'; echo "${failures[*]}"))"
    fi
    echo "$line, $((SECONDS - start)) s" | tee -a "$out/summary.txt"
done
echo
echo "summary"
cat "$out/summary.txt"
exit "$all_good"
