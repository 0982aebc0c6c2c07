#!/bin/sh
# Process 1 of a lab machine. The kernel command line tells which: teiji.level=1 is the lab host,
# teiji.level=2 a nested guest.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
option() { sed -n "s/.*\bteiji\.$1=\([^ ]*\).*/\1/p" /proc/cmdline; }
level=$(option level)

mkdir -p /dev/pts /dev/shm /mnt/bin /mnt/out /run/lock
mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t debugfs debug /sys/kernel/debug
mount -t tracefs trace /sys/kernel/tracing
mount -t bpf bpf /sys/fs/bpf
mount -t securityfs security /sys/kernel/security 2>/dev/null
ln -sf /run/teiji/teiji-lab /usr/local/bin/teiji-lab
hostname "$(option name)"
echo "127.0.0.1 localhost $(option name)" >/etc/hosts
ip link set lo up
sysctl -q -w kernel.panic=-1 kernel.printk="4 4 1 7" kernel.kptr_restrict=0 kernel.perf_event_paranoid=-1 \
	net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.accept_dad=0

case $level in
1)
	mkdir -p /run/teiji/boot
	share() { mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,$3" "$1" "$2"; }
	share boot /run/teiji/boot ro
	case ,$(option shares), in *,bin,*) share bin /mnt/bin ro,cache=loose ;; esac
	case ,$(option shares), in *,out,*) share out /mnt/out rw ;; esac
	modprobe -a kvm_amd 2>/dev/null || modprobe -a kvm_intel
	modprobe -a vhost_net vhost_vsock tun bridge veth
	. /run/teiji/net.sh
	# A virtio port per command; the loop is for an agent that died, wait also collects orphans.
	while :; do
		/run/teiji/teiji-lab agent &
		wait
		sleep 1
	done
	;;
2)
	modprobe -a virtio_net vmw_vsock_virtio_transport
	i=0
	for address in $(option addresses | tr , ' '); do
		# Not by ip: see lab/src/tools/link_up.rs.
		/run/teiji/teiji-lab link-up "eth$i"
		ip address add "$address" dev "eth$i"
		i=$((i + 1))
	done
	peer=$(option peer)
	[ -z "$peer" ] || ip neighbour replace "${peer%%,*}" lladdr "${peer#*,}" nud permanent dev eth0
	while :; do
		/run/teiji/teiji-lab agent --vsock &
		wait
		sleep 1
	done
	;;
esac
