#!/usr/bin/env bash
# Refuses words that the project's prose avoids. Exit code 1 if it finds one.
#
#   words.sh            the staged lines (scripts/hooks/pre-commit)
#   words.sh --all      every tracked file (make lint)
#   words.sh FILE...    these files
#
# It checks Markdown, comments, and the strings of the programs in apps/, crates/ and lab/: help texts, log lines, errors. It leaves
# out code blocks, code spans, names in the code, strings of tests, strings of one word, and words in capitals.
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
exec perl - "$@" <<'PERL'
use strict;
use warnings;

# The replacement for each word.
my %instead = (
    'whoever' => 'the client, the operator, anyone who',
    'nobody' => 'no client, no other program',
    'somebody' => 'the operator, another program',
    'someone' => 'a client, another program',
    'anew' => 'again',
    'be it' => 'even if, whether',
    'stands' => 'is',
    'lies' => 'is',
    'told' => 'notified, logged, reported',
    'said' => 'logged, reported, printed',
    'stock' => 'openvpn',
    'beside' => 'compared with, during, next to, in addition to',
);
my $words = join '|', map { s/ /\\s+/r } sort keys %instead;
my $refused = qr/(?<![\w-])($words)(?![\w-])/i;

my $found = 0;
# The current file, and the lines to check in it: all if undefined.
my ($file, $added);

# Checks prose that begins at line `$line`.
sub prose {
    my ($text, $line) = @_;
    return if $text !~ $refused;
    for ($text) {
        s{^[ ]*(```+|~~~+).*?(?:^[ ]*\1|\z)}{$& =~ tr/\n//cdr}gmse;
        s{(`+)(?!`)(?:(?!\n\s*\n).)*?(?<!`)\1(?!`)}{" " . ($& =~ tr/\n//cdr)}gse;
    }
    while ($text =~ /$refused/g) {
        next if $1 eq uc $1;
        my $word = lc($1) =~ s/\s+/ /r;
        my $at = $line + (substr($text, 0, $-[0]) =~ tr/\n//);
        next if $added && !$added->{$at};
        print "$file:$at: \"$word\": write $instead{$word}\n";
        $found = 1;
    }
}

# Checks comments: consecutive lines that begin with `$mark` as one text, then comments after code.
sub comment_lines {
    my ($text, $mark) = @_;
    my ($line, $first, $block) = (0, 0, '');
    for (split /\n/, $text) {
        $line++;
        if (/^\s*$mark ?(.*)/) {
            $first = $line if $block eq '';
            $block .= "$1\n";
        } else {
            prose($block, $first) if $block ne '';
            $block = '';
            prose($1, $line) if /\s$mark (.*)/;
        }
    }
    prose($block, $first) if $block ne '';
}

# Checks the strings of a Rust source up to its module of tests.
sub strings {
    my ($text) = @_;
    $text =~ s/^#\[cfg\((?:all\()?test\b.*?\)\]\n(?:#\[.*\]\n)*mod \w+ \{.*//ms;
    my ($line, $seen) = (1, 0);
    while ($text =~ m{//[^\n]*|\br(\#*)"(.*?)"\1|"((?:[^"\\]|\\.)*)"|'(?:\\.[^'\n]*|[^'\\\n])'}gs) {
        my $string = $2 // $3 // next;
        $line += substr($text, $seen, $-[0] - $seen) =~ tr/\n//;
        $seen = $-[0];
        next if $string !~ /\s/;
        $string =~ s/\\\n/\n/g;
        $string =~ s/\\n/ /g;
        $string =~ s/\{[^{}\s]*\}/{}/g;
        prose($string, $line);
    }
}

sub look {
    my ($text) = @_;
    return if $text !~ $refused;
    if ($file =~ /\.md$/) {
        prose($text, 1);
    } elsif ($file =~ /\.(rs|proto)$/) {
        comment_lines($text, qr{//[/!]?});
        strings($text) if $file =~ m{^(apps|crates|lab)/} && $file !~ m{/(tests|examples|benches)(/|\.rs$)|/test_\w+\.rs$};
    } elsif ($file =~ /\.(sh|py|toml|yml|service|socket|conf)$|(^|\/)[^.\/]+$/) {
        comment_lines($text, qr{#+});
    }
}

sub run {
    open my $out, '-|', @_ or die "words: $_[0]: $!\n";
    local $/;
    my $text = <$out> // '';
    close $out or die "words: @_ failed\n";
    $text;
}

if (@ARGV) {
    for my $name ($ARGV[0] eq '--all' ? split(/\0/, run(qw(git ls-files -z))) : @ARGV) {
        $file = $name;
        # The file was deleted in the working tree, or is a link to a folder.
        next if !-f $file;
        open my $in, '<', $file or die "words: $file: $!\n";
        local $/;
        look(<$in> // '');
    }
} else {
    my (%lines, $name);
    for (split /\n/, run(qw(git diff --cached --no-color --no-ext-diff --unified=0 --diff-filter=ACMR))) {
        if (m{^\+\+\+ b/(.*?)\t?$}) {
            $name = $1;
        } elsif (/^@@ \S+ \+(\d+)(?:,(\d+))? @@/) {
            $lines{$name}{$_} = 1 for $1 .. $1 + ($2 // 1) - 1;
        }
    }
    for (sort keys %lines) {
        ($file, $added) = ($_, $lines{$_});
        look(run('git', 'show', ":$file"));
    }
}
exit $found;
PERL
