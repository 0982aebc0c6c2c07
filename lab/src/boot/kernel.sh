# Runs as root inside the new root file system, once for each kernel: unpacks the newest linux-image-amd64 of the suite
# $1 and writes its version to /etc/teiji-lab-kernel-$2. Newer kernels are split into linux-image, -binary, -modules and
# -base packages, older ones are one package: take whatever the image depends on. The packages are unpacked, not
# installed: nobody here needs a boot loader or an initial RAM disk generator.
set -eu
suite=$1
name=$2
know_suite "$suite"

needs() {
	apt-cache -t "$suite" show --no-all-versions "$1" | sed -n 's/^Depends: //p' | tr ',|' '\n\n' |
		sed 's/(.*//; s/ //g' | grep -E '^linux-(image|binary|modules|base)-[0-9]' || true
}
packages=
set -- linux-image-amd64
while [ $# -gt 0 ]; do
	package=$1
	shift
	case " $packages " in *" $package "*) continue ;; esac
	[ "$package" = linux-image-amd64 ] || packages="$packages $package"
	set -- "$@" $(needs "$package")
done
[ -n "$packages" ]
version=$(echo $packages | sed 's/^linux-[a-z]*-\([^ ]*\).*/\1/')
cd /tmp
apt-get -q download -t "$suite" $packages >&2
# Older packages have their modules in /lib, which is a link here: unpacked over it, a folder would take its place.
mkdir unpacked
for deb in *.deb; do
	dpkg-deb --extract "$deb" unpacked
	rm "$deb"
done
if [ -d unpacked/lib ]; then
	mkdir -p unpacked/usr/lib
	cp -a unpacked/lib/. unpacked/usr/lib/
	rm -r unpacked/lib
fi
cp -a unpacked/. /
rm -r unpacked
# Split packages keep these beside the modules, older ones in /boot.
for file in vmlinuz config System.map; do
	[ -e "/usr/lib/modules/$version/$file" ] || mv "/boot/$file-$version" "/usr/lib/modules/$version/$file"
done
# No lab machine has hardware that these drive: more than a third of all modules.
cd "/usr/lib/modules/$version/kernel"
rm -rf sound drivers/accel drivers/comedi drivers/gpu drivers/iio drivers/infiniband drivers/media \
	drivers/net/wireless drivers/staging
depmod "$version"
echo "$version" >"/etc/teiji-lab-kernel-$name"
forget_suite
