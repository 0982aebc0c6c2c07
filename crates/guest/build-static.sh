#!/bin/sh
# Builds teiji-guest as one static program, which runs in guests of any distribution: target/guest/teiji-guest. Needs the
# static libraries of libelf and zlib (libelf-dev and zlib1g-dev have them), and that of zstd where libelf uses it
# (Debian 13, Ubuntu 24.04: libzstd-dev).
set -eu
cd "$(dirname "$0")/../.."

fail() {
	echo "guest: $1" >&2
	exit 1
}

library() { # name, package
	found=$("${CC:-cc}" -print-file-name="lib$1.a")
	[ "$found" != "lib$1.a" ] || fail "no lib$1.a, so the program cannot be static: install $2"
	echo "$found"
}

elf=$(library elf libelf-dev)
zlib=$(library z zlib1g-dev)
glibc=$(library c libc6-dev)
flags="-C target-feature=+crt-static"
if nm "$elf" 2>/dev/null | grep -q ' U ZSTD_'; then
	zstd=$(library zstd libzstd-dev)
	flags="$flags -C link-arg=$zstd"
fi

# Naming the target keeps the flags from what only builds: build scripts and macros.
target=x86_64-unknown-linux-gnu
output=${CARGO_TARGET_DIR:-target}
RUSTFLAGS="$flags" LIBBPF_SYS_LIBRARY_PATH="$(dirname "$elf"):$(dirname "$zlib"):$(dirname "$glibc")" \
	"${CARGO:-cargo}" build --release --target "$target" -p teiji-guest --features static
mkdir -p "$output/guest"
strip -o "$output/guest/teiji-guest" "$output/$target/release/teiji-guest"
! readelf -d "$output/guest/teiji-guest" | grep -q NEEDED || fail "the program is not static"
echo "guest: $output/guest/teiji-guest, $(($(stat -c %s "$output/guest/teiji-guest") / 1024)) KiB" >&2
