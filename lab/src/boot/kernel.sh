# Runs as root inside the new root file system: unpacks the newest linux-image-amd64 of $1 (a suite of the
# Debian archive that the release itself comes from). Newer kernels are split into linux-image, -binary,
# -modules and -base packages, older ones are one package: take whatever the image depends on. The packages
# are unpacked, not installed: nobody here needs a boot loader or an initial RAM disk generator.
set -eu
suite=$1
sed -n 's/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\) [^ ]* main.*/deb \1\2 '"$suite"' main/p' /etc/apt/sources.list \
	/etc/apt/sources.list.d/*.list 2>/dev/null | head -n 1 >/etc/apt/sources.list.d/kernel.list
[ -s /etc/apt/sources.list.d/kernel.list ]
apt-get -q update >&2

needs() {
	apt-cache -t "$suite" show --no-all-versions "$1" | sed -n 's/^Depends: //p' | tr ',|' '\n\n' |
		sed 's/(.*//; s/ //g' | grep -E '^linux-(image|binary|modules|base)-[0-9]' || true
}
todo=linux-image-amd64
packages=
while [ -n "$todo" ]; do
	set -- $todo
	package=$1
	shift
	todo=$*
	case " $packages " in *" $package "*) continue ;; esac
	[ "$package" = linux-image-amd64 ] || packages="$packages $package"
	todo="$todo $(needs "$package")"
done
[ -n "$packages" ]
cd /tmp
apt-get -q download -t "$suite" $packages >&2
for deb in *.deb; do
	dpkg-deb --extract "$deb" /
	rm "$deb"
done
version=$(ls /usr/lib/modules | sort -V | tail -n 1)
# Split packages keep these beside the modules, older ones in /boot.
for file in vmlinuz config System.map; do
	[ -e "/usr/lib/modules/$version/$file" ] || mv "/boot/$file-$version" "/usr/lib/modules/$version/$file"
done
depmod "$version"
echo "$version" >/etc/teiji-lab-kernel
