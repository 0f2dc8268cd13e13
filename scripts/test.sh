#!/usr/bin/env bash
# Runs every check, for make test. Installs nothing. Checks that this machine cannot run are collected, counted and named in the
# last line; with ADIT_NO_SKIPS=1 (CI) one of them fails the run.
#
# The interoperability tests wait for timers most of the time and run in parallel with the checks that compute.
set -uo pipefail
cd "$(dirname "$0")/.."
scripts/deps.sh check || exit 1

scratch=$(mktemp -d)
beside=
trap '[[ -z $beside ]] || kill -- "-$beside" 2>/dev/null; rm -rf "$scratch"' EXIT
export ADIT_SKIPPED=$scratch/skipped
: >"$ADIT_SKIPPED"
SECONDS=0
times=()

step() {
    local began=$SECONDS
    if ! make --no-print-directory "$1"; then
        echo "make test: $1 failed after $SECONDS s" >&2
        exit 1
    fi
    times+=("$1 $((SECONDS - began))")
}

step fmt
if ((EUID == 0)); then
    step interop-build
    # Copies: cargo may link the programs again while they run.
    mkdir -p target/interop
    cp target/debug/adit target/debug/adit-interop target/interop/
    set -m
    { began=$SECONDS; make --no-print-directory interop-run INTEROP=target/interop; rc=$?; echo "$((SECONDS - began))" >"$scratch/took"; exit $rc; } \
        >"$scratch/interop" 2>&1 &
    beside=$!
    set +m
else
    echo "interop and nft-diff: needs root" >>"$ADIT_SKIPPED"
fi
for name in lint unit gate deny doc; do
    step "$name"
done
if [[ -n $beside ]]; then
    wait "$beside"
    rc=$?
    beside=
    cat "$scratch/interop"
    if ((rc)); then
        echo "make test: interop failed" >&2
        exit 1
    fi
    times+=("interop beside them $(cat "$scratch/took")")
fi

echo "The figures in the documents (make release refuses stale ones):"
target/debug/adit-lab publish --check || true

scripts/summary.sh "$ADIT_SKIPPED" "in $SECONDS s ($(IFS=,; echo "${times[*]}" | sed 's/,/, /g'))"
