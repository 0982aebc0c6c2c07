#!/run/teiji/busybox sh
# Process 1 of a lab machine. The kernel command line tells which: teiji.level=1 is the lab host,
# teiji.level=2 a nested guest.
#
# This shell runs busybox's own commands before programs of the same name: to read programs from the image takes a nested
# guest longer than the rest of its boot. Its modules are loaded by then (BOOT_MODULES in lab/src/recipe.rs). Exceptions,
# whose forms in busybox lack what is needed:
ip() { /usr/bin/ip "$@"; }
modprobe() { /usr/sbin/modprobe "$@"; }
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
# teiji.KEY=VALUE becomes the variable option_KEY.
read -r line </proc/cmdline
for word in $line; do
	case $word in teiji.*=*)
		word=${word#teiji.}
		eval "option_${word%%=*}=\${word#*=}"
		;;
	esac
done

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
echo "$option_name" >/proc/sys/kernel/hostname
echo "127.0.0.1 localhost $option_name" >/etc/hosts
cd /proc/sys
echo -1 >kernel/panic
echo 4 4 1 7 >kernel/printk
echo 0 >kernel/kptr_restrict
echo -1 >kernel/perf_event_paranoid
echo 0 >net/ipv6/conf/default/accept_dad
echo 0 >net/ipv6/conf/all/accept_dad
cd /

case $option_level in
1)
	mkdir -p /run/teiji/boot
	share() { mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,$3" "$1" "$2"; }
	share boot /run/teiji/boot ro
	case ,$option_shares, in *,bin,*) share bin /mnt/bin "ro,cache=${option_bin:-none}" ;; esac
	case ,$option_shares, in *,out,*) share out /mnt/out rw ;; esac
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
	IFS=,
	i=0 settings='link set lo up'
	for address in $option_addresses; do
		# Not by ip: see lab/src/tools/link_up.rs.
		/run/teiji/teiji-lab link-up "eth$i"
		settings="$settings
address add $address dev eth$i"
		i=$((i + 1))
	done
	[ -z "$option_peer" ] || settings="$settings
neighbour replace ${option_peer%%,*} lladdr ${option_peer#*,} nud permanent dev eth0"
	unset IFS
	if [ -n "$option_vf" ]; then
		# A virtual function, by its MAC address. Its driver is not among those that each guest has loaded by now.
		modprobe igbvf
		vf=
		for address in /sys/class/net/*/address; do
			read -r mac <"$address"
			[ "$mac" != "${option_vf%%,*}" ] || vf=${address%/address} vf=${vf##*/}
		done
		/run/teiji/teiji-lab link-up "$vf"
		settings="$settings
address add ${option_vf#*,} dev $vf
neighbour replace ${option_wire%%,*} lladdr ${option_wire#*,} nud permanent dev $vf"
	fi
	echo "$settings" | ip -force -batch - || echo "teiji: the network is not as it should be" >/dev/console
	while :; do
		/run/teiji/teiji-lab agent --vsock &
		wait
		sleep 1
	done
	;;
esac
