# Run in a lab host whose SR-IOV NIC's virtual functions guests can have. The caller sets the names $pf and $wire, the MAC
# addresses $pf_mac and $wire_mac, and the address $wire_ip.
set -eu
modprobe -a igb e1000e vfio-pci

# Prints the name of the interface with this MAC address, once it is there.
interface() {
	for _ in $(seq 300); do
		for address in /sys/class/net/*/address; do
			if [ "$(cat "$address")" = "$1" ]; then
				basename "$(dirname "$address")"
				return
			fi
		done
		sleep 0.1
	done
	echo "no interface has the MAC address $1" >&2
	return 1
}

found=$(interface "$pf_mac")
ip link set "$found" down
ip link set "$found" name "$pf"
ip link set "$pf" up
# No driver takes them: guests get them.
echo 0 >"/sys/class/net/$pf/device/sriov_drivers_autoprobe"
echo 4 >"/sys/class/net/$pf/device/sriov_numvfs"

found=$(interface "$wire_mac")
ip link set "$found" netns peer
ip -n peer link set "$found" name "$wire"
ip -n peer address add "$wire_ip/24" dev "$wire"
ip -n peer link set "$wire" up
