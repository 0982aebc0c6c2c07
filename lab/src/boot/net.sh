# The lab host's network, read by init:
#
#   peer (network namespace)            lab host
#   eth0 10.77.0.1  =====veth=====  uplink0 --+
#                                             br0 10.77.0.254 --+-- <guest>-n0 (tap) == guest eth0 10.77.0.10+n
#
# uplink0 plays the NIC that guests' traffic leaves by; peer is the world outside. Neighbours are entered by
# hand, so that no address resolution disturbs a measurement.
ip netns add peer
ip -force -batch - <<END || echo "teiji: the network is not as it should be" >/dev/console
link set lo up
link add br0 address 52:54:00:77:00:fe type bridge forward_delay 0 stp_state 0 mcast_snooping 0
address add 10.77.0.254/24 dev br0
link set br0 up
link add uplink0 address 52:54:00:77:00:02 type veth peer name eth0 netns peer address 52:54:00:77:00:01
link set uplink0 master br0 up
neighbour replace 10.77.0.1 lladdr 52:54:00:77:00:01 nud permanent dev br0
END
ip -n peer -force -batch - <<END || echo "teiji: the network of peer is not as it should be" >/dev/console
link set lo up
address add 10.77.0.1/24 dev eth0
link set eth0 up
neighbour replace 10.77.0.254 lladdr 52:54:00:77:00:fe nud permanent dev eth0
END
