#!/bin/sh
# Checks the form of the BPF programs with the newest clang-format that is installed; -i puts it right.
set -eu
cd "$(dirname "$0")/.."
tool=$(ls /usr/bin/clang-format-[0-9]* 2>/dev/null | sort -t- -k3 -rn | head -n 1)
tool=${tool:-clang-format}
set -- ${1:---dry-run -Werror}
git ls-files --cached --others --exclude-standard '*.bpf.c' 'crates/bpf/src/**/*.h' 'crates/guest/src/**/*.h' | xargs "$tool" "$@"
