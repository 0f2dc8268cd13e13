#!/usr/bin/env bash
# Words that prose avoids, in Markdown and in comments; code spans and code blocks are left out. `words.sh` looks at the lines that
# are staged, `words.sh FILE...` at whole files. Exit code 1 if one is found.
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"

# word=what to write instead
read -r -d '' words <<'LIST' || true
whoever=the client, the operator, anyone who
nobody=no client, no other program
somebody=the operator, another program
someone=a client, another program
anew=again
be it=even if, whether
stands=is
lies=is
told=notified, logged, reported
said=logged, reported, printed
stock=openvpn
LIST

# Lines as "FILE:LINE:TEXT": what is added in the index, or all of the named files.
lines() {
    if (($#)); then
        for file in "$@"; do
            awk -v file="$file" '{ print file ":" NR ":" $0 }' "$file"
        done
        return
    fi
    git diff --cached --no-color --no-ext-diff --unified=0 --diff-filter=ACMR | awk '
        /^\+\+\+ / { file = substr($0, 7); next }
        /^@@ / { split($3, at, /[+,]/); line = at[2]; next }
        /^\+/ { print file ":" line ":" substr($0, 2); line++ }'
}

lines "$@" | awk -v words="$words" '
    BEGIN {
        count = split(words, rows, "\n")
        for (i = 1; i <= count; i++) {
            at = index(rows[i], "=")
            word[i] = substr(rows[i], 1, at - 1)
            instead[i] = substr(rows[i], at + 1)
        }
    }
    {
        colon = index($0, ":")
        file = substr($0, 1, colon - 1)
        rest = substr($0, colon + 1)
        colon = index(rest, ":")
        line = substr(rest, 1, colon - 1)
        text = substr(rest, colon + 1)
        if (file != former) { former = file; block = 0 }
        if (file ~ /\.md$/) {
            if (text ~ /^ *```/) { block = !block; next }
            if (block || text ~ /^    /) next
        } else if (file ~ /\.(rs|proto)$/) {
            if (text !~ /^ *\/\//) next
        } else if (file ~ /(\.(sh|toml|yml|service)|Makefile)$/) {
            if (text !~ /^ *#/) next
        } else {
            next
        }
        gsub(/`[^`]*`/, " ", text)
        text = " " tolower(text) " "
        gsub(/[^a-z_-]+/, " ", text)
        for (i = 1; i <= count; i++)
            if (index(text, " " word[i] " ")) {
                printf("%s:%s: \"%s\": write %s\n", file, line, word[i], instead[i])
                found = 1
            }
    }
    END { exit found }'
