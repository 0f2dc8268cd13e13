#!/usr/bin/env bash
# Prints the last line of make test: summary.sh FILE TIMES. FILE has a line "check: why" for each check that did not run.
set -euo pipefail
file=$1 times=$2

if [[ ! -s $file ]]; then
    echo "all checks passed, none skipped, $times"
    exit 0
fi
sort -u "$file" | sed 's/^/skipped: /'
# Groups the checks by reason: their names if they are few, their number if they are many.
told=$(sort -u "$file" | awk '
    { at = 0
      for (i = 1; i < length($0); i++) if (substr($0, i, 2) == ": ") at = i
      name = substr($0, 1, at - 1); why = substr($0, at + 2)
      if (!(why in count)) order[++reasons] = why
      count[why]++; names[why] = names[why] (names[why] == "" ? "" : ", ") name }
    END { for (r = 1; r <= reasons; r++) { why = order[r]
        printf("%s%s: %s", (r > 1 ? "; " : ""), why, (count[why] > 4 ? count[why] " named above" : names[why])) } }')
number=$(sort -u "$file" | wc -l)
if [[ -n ${ADIT_NO_SKIPS:-} ]]; then
    echo "FAILED: $number checks were skipped, and none may be: $told"
    exit 1
fi
echo "the other checks passed, $number skipped ($told), $times"
