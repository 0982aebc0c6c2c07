#!/bin/busybox sh
# First program of a lab machine (host or guest): puts a writable layer of memory over the read-only image of the
# root file system and goes on with /run/teiji/init in it.
b=/bin/busybox
$b mkdir -p /proc /sys /dev /lower /rw /root
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
if $b grep -q teiji.probe /proc/cmdline; then
	echo teiji-probe-ok >/dev/ttyS0
	$b poweroff -f
fi
fail() {
	echo "teiji: cannot $1" >/dev/console
	$b sleep 1
	$b poweroff -f
}
for module in $($b cat /modules/order); do
	$b insmod "/modules/$module" || fail "load $module"
done
$b mount -t erofs -o ro /dev/vda /lower || fail "mount the image of the root file system"
$b mount -t tmpfs -o size=50% rw /rw
$b mkdir /rw/up /rw/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/rw/up,workdir=/rw/work overlay /root || fail "mount the overlay"
for d in proc sys dev; do $b mount --move /$d /root/$d; done
$b mount -t tmpfs -o mode=755 run /root/run
$b mkdir /root/run/teiji
# init needs busybox, too.
$b cp /teiji/* $b /root/run/teiji/
exec $b switch_root /root /run/teiji/init
