// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * path_trace: follows packets between a host's NIC and the guests of KVM, by vhost-net or by the VMM.
 *
 * Every probe sits on a function or tracepoint of the path and writes one record into a ring buffer.
 * A packet is recognised from record to record by a fingerprint, a keyed hash of fields that do not
 * change on the way; see parse(). Nothing else of the packet leaves the kernel, except the first
 * SIP_SNAP bytes of UDP payload when the operator asks for SIP. Requests of DNS, and those that some bytes
 * identify, are matched by a hash too, those of TCP by sequence numbers.
 *
 *   netif_rx, netif_receive_skb     received by the host            HOST_RX
 *   net_dev_start_xmit (on a tap)   put on the tap                  TAP_ENQUEUE
 *   handle_rx                       the worker begins to empty a tap: its vhost_net
 *   tun_recvmsg                     taken by the vhost worker       TAP_DEQUEUE
 *   vhost_add_used_and_signal_n     written and signalled        \
 *   vhost_add_used_n                in the guest's ring           |
 *   kvm_arch_set_irq_inatomic       which VM is signalled         > IRQ
 *   kvm_apic_accept_irq             which vCPU accepted it       /
 *   kvm_entry                       the vCPU enters with it         ENTRY
 *   vhost_poll_wakeup               the guest kicks                 KICK
 *   tun_sendmsg                     vhost takes the guest's frame off its ring; which queue, which worker
 *   netif_receive_skb (on a tap)    handed to the host stack        TAP_SEND
 *   net_dev_queue, qdisc_dequeue, dev_hard_start_xmit               DEV_QUEUE, QDISC_DEQUEUE, DEV_XMIT
 *   tun_chr_read_iter, kvm_send_userspace_msi, tun_chr_write_iter, ioeventfd_write
 *                                   the same, of taps that the VMM serves itself: see vmm.bpf.h
 *   vfio_msihandler                 a device that was given to a VM interrupts it: see devices.bpf.h
 *   tap_handle_frame, tap_recvmsg, tap_sendmsg
 *                                   the same, of macvtaps: see macvtap.bpf.h
 *   kfree_skb                       dropped by the kernel, anywhere DROP
 *   netif_receive_skb, net_dev_start_xmit on a tap whose guest reports events itself: PRINT
 *   sched_waking, sched_switch of the threads of such a guest's VM: who woke whom, and when it ran  START
 *   sched_process_exit              a thread ends: its id, and that of its process, may be another's from now
 * on
 *
 * Each vCPU thread, vhost worker and VMM's thread that serves a tap has a clock (struct clock), which
 * accumulates the time spent in each state. kvm_entry, kvm_exit, kvm_arch_no_poll, sched_switch and
 * sched_wakeup advance it. Records carry readings of the clocks; the difference of two readings says how the
 * time between them was spent, and no record is needed for the thousands of exits and context switches in
 * between. A clock also has the name of a thread that had the CPU while its own waited; sched_migrate_task
 * tells it that this is another CPU now.
 *
 *            kvm_entry            kvm_exit             halt, polling
 *    RUN ─────────────► GUEST ─────────────► RUN ───────────────────► POLL
 *     ▲ switch in                             │ halt, not polling       │ switched out
 *     │                                       ▼                         ▼
 *   READY ◄── woken, its CPU is busy ───── ASLEEP ◄─────────────────────┘
 *             (preempted: READY from any state, and back to it)
 *
 * A thread that is woken on an idle CPU stays ASLEEP until the switch: no other thread had the CPU. A halted
 * vCPU stays ASLEEP or POLL until its next kvm_entry.
 *
 * Assumptions: taps of the tun driver, or macvtaps; vhost workers are threads, of the VMM or of the kernel;
 * one thread serves a queue of a tap at a time; time stamps of different CPUs are comparable
 * (bpf_ktime_get_ns). Programs whose target a kernel lacks are left out by the Rust half.
 *
 * Needs Linux 6.1. To look at it by hand:
 *   bpftool prog load path_trace.bpf.o /sys/fs/bpf/t autoattach; bpftool map dump name counters
 */
#include "kernel.h"
#include "intf.h"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Packets of a chain that are looked at: those of a bulk dequeue, each with the segments it was split into.
 */
#define BULK_MAX 128

#include "maps.bpf.h"
#include "context.bpf.h"
#include "clock.bpf.h"
#include "packet.bpf.h"
#include "dns.bpf.h"
#include "key.bpf.h"
#include "tcp.bpf.h"
#include "starts.bpf.h"
#include "threads.bpf.h"
#include "serving.bpf.h"
#include "signals.bpf.h"
#include "taking.bpf.h"
#include "devices.bpf.h"
#include "interrupts.bpf.h"
#include "drops.bpf.h"
#include "prints.bpf.h"

/* ---- packets ---- */

/*
 * For skbs that the verifier trusts: arguments of tracepoints and of functions. Which part a packet has in
 * requests is asked at taps only: what passes them is known by its fingerprint elsewhere.
 */
static __always_inline bool parse_skb(struct sk_buff *skb, enum parse_flags flags, struct packet *p)
{
	const unsigned char *data = skb->data, *l2 = data;

	p->len = skb->len;
	if (flags & HAS_MAC_HEADER) {
		l2 = skb->head + skb->mac_header;
		p->len += ETH_HLEN;
	}
	return parse(l2, data + (skb->len - skb->data_len), flags & AT_TAP ? flags | KEYED : flags, p);
}

/*
 * Packets are stamped after they have passed the filter, so that the others, which are most packets of a
 * host, cost no reading of the clock. A packet continues only after the probe has returned, so the time of
 * the filter, some hundred ns, is in the stage before the point instead of the one after it. At the first
 * point of the path no stage precedes: there the packets for traced guests are stamped as soon as their
 * address is known.
 */
static __always_inline void emit_packet(struct packet *p, u8 point, u32 ifindex)
{
	struct rec_packet *r = reserve(sizeof(*r));

	if (!r)
		return;
	fill_head(&r->head, 0, REC_PACKET, point, ifindex);
	r->fingerprint = p->fingerprint;
	r->len = p->len;
	r->tid = current_tid();
	r->head.ts = p->received ? p->received : bpf_ktime_get_ns();
	submit(r);
}

static __always_inline void fill_tap(struct rec_tap *r, struct packet *p, u64 now, u8 type, u8 point,
				     u32 ifindex, struct clock *worker, u16 depth, u16 queue)
{
	fill_head(&r->packet.head, now, type, point, ifindex);
	r->packet.fingerprint = p->fingerprint;
	r->packet.len = p->len;
	r->packet.tid = current_tid();
	r->key = p->key;
	r->role = p->role;
	r->depth = depth;
	r->queue = queue;
	r->segments = p->segments;
	r->preempted_by = worker ? worker->preempted_by : 0;
	r->worker_state = clock_read_or_zeros(worker, now, r->worker, point != POINT_TAP_ENQUEUE);
}

static __always_inline void emit_tap(struct packet *p, u64 now, u8 point, u32 ifindex, struct clock *worker,
				     u16 depth, u16 queue)
{
	if (settings.matching == MATCH_SIP && p->proto == PROTO_UDP && point != POINT_TAP_DEQUEUE) {
		struct rec_sip *r = reserve(sizeof(*r));
		u64 n;

		if (!r)
			return;
		fill_tap(&r->tap, p, now, REC_SIP, point, ifindex, worker, depth, queue);
		/* bounded here: Linux 6.1 forgets a bound across calls, and that r was reserved */
		n = at_most(p->payload_len, SIP_SNAP);
		if (bpf_probe_read_kernel(r->payload, n, p->payload))
			n = 0;
		r->snap = n;
		submit(r);
	} else {
		struct rec_tap *r;

		if (point != POINT_TAP_DEQUEUE)
			match_payload(p);
		r = reserve(sizeof(*r));
		if (!r)
			return;
		fill_tap(r, p, now, REC_TAP, point, ifindex, worker, depth, queue);
		if (settings.matching == MATCH_TCP && p->proto == PROTO_TCP)
			r->role = read_segment(p, &r->segment);
		submit(r);
	}
}

/*
 * The current thread's clock, if it is the worker that is handing over this queue's frames. With receive
 * packet steering a frame passes the stack on another CPU; with NAPI on the tap it does so later, in a
 * softirq in the context of any thread. The clock of that thread says nothing about the frame.
 */
static __always_inline struct clock *handing_over(u32 ifindex, u16 queue)
{
	struct clock *c = clock_of(current_tid());
	bool hands_over = c && c->sending.ifindex == ifindex && c->sending.queue == queue;

	return hands_over && !interrupted() ? c : NULL;
}

SEC("tp_btf/netif_rx")
int BPF_PROG(on_netif_rx, struct sk_buff *skb)
{
	struct packet p = {};
	u32 ifindex = skb->dev->ifindex;

	/* a tap's frames are taken in netif_receive_skb */
	if (!is_tap_here(skb->dev) && parse_skb(skb, HAS_MAC_HEADER | TO_GUEST, &p) && p.to_guest)
		emit_packet(&p, POINT_HOST_RX, ifindex);
	return 0;
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(on_netif_receive_skb, struct sk_buff *skb)
{
	struct packet p = {};
	u32 ifindex = skb->dev->ifindex;

	if (is_tap_here(skb->dev)) {
		/* broadcasts to it: macvlan_broadcast_one() */
		if (is_macvtap(ifindex))
			return 0;
		/* as skb_record_rx_queue() left it */
		u16 queue = skb->queue_mapping ? skb->queue_mapping - 1 : NOT_KNOWN;

		if (parse_skb(skb, HAS_MAC_HEADER | AT_TAP, &p)) {
			count_segments(&p, skb->head + skb->end);
			emit_tap(&p, bpf_ktime_get_ns(), POINT_TAP_SEND, ifindex,
				 handing_over(ifindex, queue), 0, queue);
		}
	} else if (parse_skb(skb, HAS_MAC_HEADER | TO_GUEST, &p) && p.to_guest) {
		emit_packet(&p, POINT_HOST_RX, ifindex);
	}
	return 0;
}

SEC("fentry/handle_rx")
int BPF_PROG(on_handle_rx, struct vhost_net *net)
{
	struct clock *c = clock_of(current_tid());

	if (!c)
		return 0;
	round_begins(c, (u64)net, c->holds ? last_used(c) : 0);
	return 0;
}

/* Packets waiting behind the one being taken: in the tap's ring, and in the batch that vhost has taken
 * off it already (vhost_net_buf in drivers/vhost/net.c). */
static __always_inline u16 queue_depth(struct ptr_ring *ring, struct clock *c)
{
	int size = READ(ring, size), producer = READ(ring, producer);
	int n = producer - READ(ring, consumer_head);
	struct vhost_net *net = c ? (struct vhost_net *)c->net : NULL;

	if (n < 0) {
		n += size;
	} else if (n == 0 && producer >= 0 && producer < size) {
		void **queue = READ(ring, queue);
		u64 next = 0;

		/*
		 * full: the next slot to fill is the next to take, and has a packet. If it is being filled,
		 * the one after it is free, or the producer has gone on.
		 */
		if (read_number(queue + producer, sizeof(*queue)))
			next = read_number(queue + (producer + 1 < size ? producer + 1 : 0), sizeof(*queue));
		if (next && READ(ring, producer) == producer)
			n = size;
	}
	if (net)
		n += READ(net, vqs[0].rxq.tail) - READ(net, vqs[0].rxq.head);
	return n < 0 ? 0 : n > 0xffff ? 0xffff : n;
}

/* The thread of this clock serves a queue: one of the maps `workers` and `senders` says so. */
static __always_inline void refer(void *map, const struct tap_queue *q, struct clock *c)
{
	struct clock_ref self = c->own;

	if (!refers_to(bpf_map_lookup_elem(map, q), c)) {
		learn_vm(c, q);
		bpf_map_update_elem(map, q, &self, BPF_ANY);
	}
}

/* vhost has taken a packet off the ring of a tap, and fetches it. */
static __always_inline int taken_by_vhost(struct msghdr *m, struct net_device *dev, u16 queue,
					  struct ptr_ring *ring)
{
	u64 now = bpf_ktime_get_ns();
	struct sk_buff *skb = m->msg_control;
	struct tap_queue q = {.ifindex = READ(dev, ifindex), .queue = queue};
	struct packet p = {};
	struct clock *c;
	const unsigned char *data;
	u32 len;

	if (!skb)
		return 0; /* not vhost */
	if (!is_tap(dev, q.ifindex))
		return 0;
	if ((u64)skb & 1) { /* TUN_XDP_FLAG: an XDP frame, not an skb */
		count(COUNT_UNIDENTIFIED);
		return 0;
	}
	c = worker_clock(now);
	if (c) {
		refer(&workers, &q, c);
		packet_taken(c, now, &q, last_used(c));
	}

	data = READ(skb, data);
	len = READ(skb, len);
	p.len = len;
	if (parse(data, data + (len - READ(skb, data_len)), AT_TAP | TO_GUEST, &p))
		emit_tap(&p, now, POINT_TAP_DEQUEUE, q.ifindex, c, queue_depth(ring, c), NOT_KNOWN);
	return 0;
}

SEC("fentry/tun_recvmsg")
int BPF_PROG(on_tun_recvmsg, struct socket *sock, struct msghdr *m)
{
	struct tun_file *tfile = (void *)sock - bpf_core_field_offset(struct tun_file, socket);

	return taken_by_vhost(m, READ(READ(tfile, tun), dev), READ(tfile, queue_index), &tfile->tx_ring);
}

/* ---- the way out ---- */

/* vhost hands over a guest's frames: until it returns, frames in the stack are from this worker and queue. */
static __always_inline int vhost_sends(struct net_device *dev, u16 queue)
{
	struct tap_queue q = {.ifindex = READ(dev, ifindex), .queue = queue};
	struct clock *c;

	if (!is_tap(dev, q.ifindex))
		return 0;
	c = clock_of(current_tid());
	if (c)
		look_for_skipped_signal(c);
	if (!(settings.directions & DIR_OUT))
		return 0;
	if (!c)
		c = worker_clock(bpf_ktime_get_ns());
	if (!c)
		return 0;
	c->sending = q;
	refer(&senders, &q, c);
	return 0;
}

static __always_inline int has_sent(void)
{
	struct clock *c = clock_of(current_tid());

	if (c)
		c->sending.ifindex = 0;
	return 0;
}

SEC("fentry/tun_sendmsg")
int BPF_PROG(on_tun_sendmsg, struct socket *sock)
{
	struct tun_file *tfile = (void *)sock - bpf_core_field_offset(struct tun_file, socket);

	return vhost_sends(READ(READ(tfile, tun), dev), READ(tfile, queue_index));
}

SEC("fexit/tun_sendmsg")
int BPF_PROG(on_tun_sent)
{
	return has_sent();
}

/* A vCPU thread kicks the transmit queue of a tap. */
static __always_inline void emit_kick(struct clock *c, u64 now, const struct tap_queue *q)
{
	struct rec_kick *r = reserve(sizeof(*r));

	if (!r)
		return;
	fill_head(&r->head, now, REC_KICK, 0, q->ifindex);
	r->vm = c->vm;
	r->vcpu = c->vcpu;
	r->queue = q->queue;
	r->preempted_by = c->preempted_by;
	clock_read(c, now, r->clock);
	r->worker_state =
	    clock_read_or_zeros(clock_at(bpf_map_lookup_elem(&senders, q)), now, r->worker, false);
	submit(r);
}

SEC("fentry/vhost_poll_wakeup")
int BPF_PROG(on_kick, struct wait_queue_entry *wait)
{
	struct vhost_poll *poll = (void *)wait - bpf_core_field_offset(struct vhost_poll, wait);
	struct clock *c = clock_of(current_tid());
	struct vhost_virtqueue *vq;
	struct tap_queue q;

	/* only a vCPU thread kicks; vhost also polls the tap's socket, in the context of any thread */
	if (!c || c->actor != ACTOR_VCPU || !(settings.directions & DIR_OUT))
		return 0;
	/* a queue's poll is inside the queue; before Linux 6.5 a poll does not say which queue: see is_vq */
	vq = (void *)poll - bpf_core_field_offset(struct vhost_virtqueue, poll);
	if (bpf_core_field_exists(poll->vq) && READ(poll, vq) != vq)
		return 0;
	if (!is_vq(vq, 1) || !queue_of(vq, &q))
		return 0;
	emit_kick(c, bpf_ktime_get_ns(), &q);
	return 0;
}

/* A guest's frame begins its way through the host's stack at the queue of its macvtap. */
static __always_inline void sent_by_macvtap(struct sk_buff *skb, u32 ifindex)
{
	struct packet p = {};
	struct clock *c = clock_of(current_tid());
	u16 queue = NOT_KNOWN;

	if (!parse_skb(skb, AT_TAP, &p))
		return;
	count_segments(&p, skb->head + skb->end);
	if (c && c->sending.ifindex == ifindex && !interrupted())
		queue = c->sending.queue;
	else
		c = NULL;
	emit_tap(&p, bpf_ktime_get_ns(), POINT_TAP_SEND, ifindex, c, 0, queue);
}

SEC("tp_btf/net_dev_queue")
int BPF_PROG(on_dev_queue, struct sk_buff *skb)
{
	struct packet p = {};
	u32 ifindex = skb->dev->ifindex;

	if (is_tap_here(skb->dev)) {
		if (is_macvtap(ifindex))
			sent_by_macvtap(skb, ifindex);
	} else if (parse_skb(skb, 0, &p) && !p.to_guest) {
		emit_packet(&p, POINT_DEV_QUEUE, ifindex);
	}
	return 0;
}

/*
 * Reports a packet that the verifier does not trust. Not inlined: the verifier looks at a global function
 * once, instead of once for each packet of a chain.
 */
__noinline int emit_linked(u64 address, u8 point)
{
	struct sk_buff *skb = (struct sk_buff *)address;
	struct net_device *dev = READ(skb, dev);
	u32 ifindex = READ(dev, ifindex), len = READ(skb, len);
	const unsigned char *data = READ(skb, data);
	struct packet p = {.len = len};

	if (!is_tap(dev, ifindex) && parse(data, data + (len - READ(skb, data_len)), 0, &p) && !p.to_guest)
		emit_packet(&p, point, ifindex);
	return 0;
}

/* Reports a chain of packets that are handed over together. */
static __always_inline int emit_chain(struct sk_buff *first, u8 point)
{
	struct packet p = {};
	struct sk_buff *at;
	u32 ifindex;
	int i;

	/* nearly always the only one; the verifier trusts it, so its fields are read without a call each */
	if (!first)
		return 0;
	ifindex = first->dev->ifindex;
	if (is_tap_here(first->dev))
		return 0;
	if (parse_skb(first, 0, &p) && !p.to_guest)
		emit_packet(&p, point, ifindex);
	if (!first->next)
		return 0;
	at = READ(first, next); /* as a number */
	for (i = 1; i < BULK_MAX && at; i++) {
		emit_linked((u64)at, point);
		at = READ(at, next);
	}
	return 0;
}

SEC("tp_btf/qdisc_dequeue")
int BPF_PROG(on_qdisc_dequeue, void *qdisc, void *txq, int packets, struct sk_buff *skb)
{
	return emit_chain(skb, POINT_QDISC_DEQUEUE);
}

/*
 * The stack hands packets to a driver. The tracepoint below comes only after packet sockets have taken their
 * copies: with it, a tcpdump running beside teiji would add its own work to the response time, and the result
 * would differ from the times of tcpdump.
 */
SEC("fentry/dev_hard_start_xmit")
int BPF_PROG(on_hand_over, struct sk_buff *first)
{
	return emit_chain(first, POINT_DEV_XMIT);
}

/*
 * The driver of a tap is tun_net_xmit: handing it a packet puts the packet on the tap's ring. Other devices
 * are followed here only where functions cannot be probed.
 */
SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(on_dev_xmit, struct sk_buff *skb, struct net_device *dev)
{
	struct packet p = {};
	struct tap_queue q = {.ifindex = dev->ifindex, .queue = skb->queue_mapping};

	if (is_tap_here(dev)) {
		if (!is_macvtap(q.ifindex) && parse_skb(skb, AT_TAP | TO_GUEST, &p)) {
			count_segments(&p, skb->head + skb->end);
			emit_tap(&p, bpf_ktime_get_ns(), POINT_TAP_ENQUEUE, q.ifindex,
				 clock_at(bpf_map_lookup_elem(&workers, &q)), 0, NOT_KNOWN);
		}
	} else if (!settings.hand_over && parse_skb(skb, 0, &p) && !p.to_guest) {
		emit_packet(&p, POINT_DEV_XMIT, q.ifindex);
	}
	return 0;
}

#include "vmm.bpf.h"
#include "macvtap.bpf.h"
