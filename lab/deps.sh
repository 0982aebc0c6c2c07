#!/bin/sh
# Installs what building and testing need and this machine lacks, by apt-get; says what before it does.
# Does nothing, quickly, when all is there.
set -eu

fail() {
	echo "deps: $1" >&2
	exit 1
}

# The newest clang from 16 on that is installed; BPF programs need it.
newest_clang() {
	for c in $(ls /usr/bin/clang-[0-9]* 2>/dev/null | grep -Ex '/usr/bin/clang-[0-9]+' | sort -t- -k2 -rn); do
		[ "${c##*-}" -ge 16 ] && echo "${c##*-}" && return
	done
	v=$(clang -dumpversion 2>/dev/null | cut -d. -f1)
	[ "${v:-0}" -lt 16 ] || echo "$v"
}

missing=
need() { # package, then a command or file that shows that it is there
	command -v "$2" >/dev/null 2>&1 || [ -e "$2" ] || missing="$missing $1"
}
command -v cargo >/dev/null 2>&1 || fail "no Rust toolchain (cargo): nothing can be built; install one, see https://rustup.rs"
need gcc cc
need pkg-config pkg-config
need libelf-dev /usr/include/libelf.h
need zlib1g-dev /usr/include/zlib.h
need mmdebstrap mmdebstrap
need debian-archive-keyring /usr/share/keyrings/debian-archive-keyring.gpg
need util-linux unshare
clang=$(newest_clang)
[ -n "$clang" ] || missing="$missing clang"
[ -z "$clang" ] || command -v "clang-format-$clang" >/dev/null 2>&1 ||
	[ "$(clang-format --version 2>/dev/null | sed -n 's/.*version \([0-9]*\)\..*/\1/p')" = "$clang" ] ||
	missing="$missing clang-format-$clang"
[ -n "$missing" ] || exit 0

command -v apt-get >/dev/null 2>&1 || fail "missing:$missing; without apt-get they must be installed by hand"
[ "$(id -u)" = 0 ] || fail "missing:$missing; run \`sudo make deps\` to install them"
free=$(df -Pk /usr | awk 'NR == 2 { print int($4 / 1024) }')
[ "$free" -ge 1500 ] || fail "only $free MB are free in /usr, about 1500 MB are needed to install:$missing"
apt-get -q update || fail "apt-get update failed: no network? Missing:$missing"
case " $missing " in
*" clang "*)
	v=$(apt-cache search --names-only '^clang-[0-9]+$' | sed 's/^clang-\([0-9]*\).*/\1/' | sort -rn | head -n 1)
	[ "${v:-0}" -ge 16 ] || fail "the package sources have no clang 16 or newer: BPF programs cannot be built"
	missing=$(echo "$missing" | sed "s/\bclang\b/clang-$v clang-format-$v/")
	;;
esac
echo "deps: installing$missing" >&2
DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends $missing ||
	fail "apt-get could not install:$missing"
