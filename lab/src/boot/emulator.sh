# Runs as root inside the new root file system: installs the packages $2... from $1, a suite of the Debian archive that
# the release itself comes from, with whatever of that suite they need.
set -eu
suite=$1
shift
list=/etc/apt/sources.list.d/emulator.list
sed -n 's/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\) [^ ]* main.*/deb \1\2 '"$suite"' main/p' /etc/apt/sources.list \
	/etc/apt/sources.list.d/*.list 2>/dev/null | head -n 1 >"$list"
[ -s "$list" ]
apt-get -q update >&2
apt-get -q -y install -t "$suite" "$@" >&2
rm "$list"
