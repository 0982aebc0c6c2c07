# Put before the other scripts of this folder that run in the new root file system: has apt know $1 too, a suite of the
# Debian archive that the release itself comes from, until `forget_suite`.
list=/etc/apt/sources.list.d/lab.list
know_suite() {
	sed -n 's/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\) [^ ]* main.*/deb \1\2 '"$1"' main/p' /etc/apt/sources.list \
		/etc/apt/sources.list.d/*.list 2>/dev/null | head -n 1 >/tmp/lab.list
	[ -s /tmp/lab.list ]
	mv /tmp/lab.list "$list"
	apt-get -q update >&2
}
forget_suite() {
	rm "$list"
}
