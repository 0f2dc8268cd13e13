#!/usr/bin/env bash
# Runs every check, for make test. Installs nothing. Checks that this machine cannot run are collected, counted and named in the
# last line; with ADIT_NO_SKIPS=1 (CI) one of them fails the run.
#
# The interoperability tests mostly wait for timers and run in parallel with the other steps. So does the gate, which has its own
# profile and therefore its own lock: it computes while unit tests wait.
set -uo pipefail
cd "$(dirname "$0")/.."
scripts/deps.sh check || exit 1

# Where nothing was compiled incrementally yet, the files for it cost a sixth of the time and bring nothing. Cargo makes the folder itself in
# any case.
[[ -n $(ls -A target/debug/incremental 2>/dev/null) ]] || export CARGO_INCREMENTAL=0

scratch=$(mktemp -d)
declare -A lanes=()
trap '((${#lanes[@]})) && kill -- "${lanes[@]/#/-}" 2>/dev/null; rm -rf "$scratch"' EXIT
export ADIT_SKIPPED=$scratch/skipped
: >"$ADIT_SKIPPED"
SECONDS=0

# Makes one target and records its time.
step() {
    local began=$SECONDS
    if ! make --no-print-directory "$1"; then
        echo "make test: $1 failed after $SECONDS s" >&2
        return 1
    fi
    echo "$1 $((SECONDS - began))" >>"$scratch/times"
}

# Makes targets one after the other in the background, as a process group; their output is printed by `finish`.
beside() {
    local lane=$1
    shift
    set -m
    { for target; do step "$target" || exit 1; done; } >"$scratch/$lane" 2>&1 &
    lanes[$lane]=$!
    set +m
}

# Waits for a lane and prints its output.
finish() {
    wait "${lanes[$1]}"
    local rc=$?
    unset "lanes[$1]"
    cat "$scratch/$1"
    return $rc
}

step fmt || exit 1
if ((EUID == 0)); then
    step interop-build || exit 1
    # Uses copies, since cargo may relink the programs while they run.
    mkdir -p target/interop
    cp target/debug/adit target/debug/adit-interop target/interop/
    export INTEROP=target/interop
    beside interop interop-run
else
    echo "interop and nft-diff: needs root" >>"$ADIT_SKIPPED"
fi
step lint || exit 1
beside gate gate deny doc
# What the other lanes found is printed in any case.
failed=0
step unit || failed=1
((EUID)) || step nft-diff || failed=1
finish gate || failed=1
((EUID)) || finish interop || failed=1
((failed == 0)) || exit 1

echo "The figures in the documents (make release refuses stale ones):"
target/debug/adit-lab publish --check || true

scripts/summary.sh "$ADIT_SKIPPED" "in $SECONDS s ($(paste -sd, "$scratch/times" | sed 's/,/, /g'))"
