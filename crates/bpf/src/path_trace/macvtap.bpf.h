/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Probes of taps that are macvtaps: a device above a NIC or bridge instead of a port of a bridge
 * (drivers/net/tap.c, drivers/net/macvlan.c). vhost serves them as it does a tap of the tun driver.
 *
 *   tap_handle_frame             put on the tap                           TAP_ENQUEUE
 *   tap_recvmsg                  taken by the vhost worker                TAP_DEQUEUE
 *   tap_sendmsg                  vhost takes the guest's frame off its ring; which queue, which worker
 *   net_dev_queue (on a macvtap) handed to the host stack                 TAP_SEND
 *
 * The frame of a guest is queued on the macvtap first, and then on the device below it, which is on its path
 * like any other device.
 */
#ifndef TEIJI_MACVTAP_BPF_H
#define TEIJI_MACVTAP_BPF_H

SEC("fentry/tap_handle_frame")
int BPF_PROG(on_macvtap_put)
{
	struct tap_queue q = {};
	struct clock *worker = NULL;
	struct net_device *dev;
	struct tap_dev *tap;
	struct packet p = {};
	const unsigned char *data, *l2;
	struct sk_buff *skb;
	u64 now, n, at;

	/* a pointer to a pointer: Linux 6.12 lets no program read such an argument directly */
	if (bpf_get_func_arg(ctx, 0, &at))
		return 0;
	skb = (struct sk_buff *)read_number((void *)at, sizeof(skb));
	dev = READ(skb, dev);
	q.ifindex = READ(dev, ifindex);
	if (!is_tap(dev, q.ifindex))
		return 0;
	/* the frame is at its network header here, and its MAC header precedes it */
	l2 = READ(skb, head) + READ(skb, mac_header);
	data = READ(skb, data);
	n = READ(skb, len);
	p.len = n + (data - l2);
	if (!parse(l2, data + (n - READ(skb, data_len)), AT_TAP | TO_GUEST | KEYED, &p))
		return 0;
	count_segments(&p, READ(skb, head) + READ(skb, end));
	now = bpf_ktime_get_ns();
	/* which of several queues the frame is for is decided later */
	tap = READ(dev, rx_handler_data);
	if (READ(tap, numvtaps) == 1)
		worker = clock_at(bpf_map_lookup_elem(&workers, &q));
	emit_tap(&p, now, POINT_TAP_ENQUEUE, q.ifindex, worker, 0, NOT_KNOWN);
	return 0;
}

SEC("fentry/tap_recvmsg")
int BPF_PROG(on_macvtap_recvmsg, struct socket *sock, struct msghdr *m)
{
	struct tap_queue___of_tap *tap =
	    (void *)sock - bpf_core_field_offset(struct tap_queue___of_tap, sock);

	return taken_by_vhost(m, READ(READ(tap, tap), dev), READ(tap, queue_index), &tap->ring);
}

SEC("fentry/tap_sendmsg")
int BPF_PROG(on_macvtap_sendmsg, struct socket *sock)
{
	struct tap_queue___of_tap *tap =
	    (void *)sock - bpf_core_field_offset(struct tap_queue___of_tap, sock);

	return vhost_sends(READ(READ(tap, tap), dev), READ(tap, queue_index));
}

SEC("fexit/tap_sendmsg")
int BPF_PROG(on_macvtap_sent)
{
	return has_sent();
}

#endif
