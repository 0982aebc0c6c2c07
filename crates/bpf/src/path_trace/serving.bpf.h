/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a VMM that serves a tap itself makes known of its queues. vhost says for which virtqueue it signals,
 * and which virtqueue was kicked; a VMM does both in user space, by interrupts and doorbells (ioeventfds)
 * that may belong to any of its devices. So it is learnt which of them belong to a queue of a tap.
 *
 * The interrupt of a receive queue is the first one that the thread sends after it took packets off the tap,
 * before it sleeps, takes packets off another queue or sends a frame. What has been first twice in a row is
 * the queue's interrupt until another one has been first twice in a row. Only that one is joined with
 * packets; of all others it is not known whose they are. Another device's that the same thread serves, such
 * as a disk's, comes first if the guest wanted no interrupt for the packets. It is also sent when the thread
 * holds none, and more often: such an interrupt is not learnt, and says nothing against the one that is in
 * doubt. Nor does one that is sent after a packet that was not seen: see taking.bpf.h.
 *
 *                   another, for the 1st time             the same again
 *   [known or not] ──────────────────────────► [doubted] ───────────────► [known]
 *         ▲                                        │
 *         └────────────────────────────────────────┘ the known one
 *
 * The doorbell of a transmit queue is learnt in the same way. A thread that slept, woke up and sent a frame
 * of the queue was told so by the only doorbell that the guest has rung since the thread fell asleep. If it
 * rang several, nothing is learnt.
 */
#ifndef TEIJI_SERVING_BPF_H
#define TEIJI_SERVING_BPF_H

/* Takes what was seen to be a queue's; returns whether it is known to be. 0 stands for none. */
static __always_inline bool learn(struct learnt *l, u64 seen)
{
	if (seen == l->known) {
		l->doubt = 0;
		return true;
	}
	if (seen != l->doubt) {
		l->doubt = seen;
		return false;
	}
	l->known = seen;
	l->doubt = 0;
	return true;
}

/* How far the count of interrupts that come alone goes, either way. */
#define MOST_ALONE 4

/* A VMM's thread sends an interrupt, `alone`: while it holds no packets off a tap; else as the first after it
 * took some. Returns whether it is another device's. */
static __always_inline bool is_of_others(u32 vm, u64 id, bool alone)
{
	struct vmm_interrupt key = {.id = id, .vm = vm};
	s64 *known = bpf_map_lookup_elem(&sent_alone, &key), first = alone ? 1 : -1;

	if (!known) {
		bpf_map_update_elem(&sent_alone, &key, &first, BPF_NOEXIST);
		return alone;
	}
	/* Guests move interrupts, and a number that is free then is another device's: what is long ago counts
	 * for little. One thread serves a device, so nobody else writes here. */
	if (alone ? *known < MOST_ALONE : *known > -MOST_ALONE)
		*known += first;
	return *known > 0;
}

/* A number for an interrupt by its message, or by its number in KVM's routing. Neither is 0. */
static __always_inline u64 message_id(u32 address_lo, u32 address_hi, u32 data)
{
	return ((u64)(address_lo ^ address_hi << 8) << 32 | data) | 1ULL << 62;
}

static __always_inline u64 route_id(u32 gsi)
{
	return 1ULL << 63 | gsi;
}

/* A number for a doorbell: which address the guest writes to, and what. Of a guest whose writes carry other
 * numbers each time (VIRTIO_F_NOTIFICATION_DATA), none is learnt. */
static __always_inline u64 doorbell_id(u64 addr, u32 len, u64 value)
{
	return (addr << 20 ^ value << 4 ^ len) | 1ULL << 63;
}

/* The guest rings a doorbell. */
static __always_inline void note_ring(struct rings *r, u64 doorbell, u64 now)
{
	bpf_spin_lock(&r->lock);
	if (r->last != doorbell) {
		r->others = r->at;
		r->last = doorbell;
	}
	if (r->at < now)
		r->at = now;
	bpf_spin_unlock(&r->lock);
}

/* The only doorbell that has been rung since then; 0 if there are none or several. */
static __always_inline u64 rung_since(struct rings *r, u64 then)
{
	u64 only = 0;

	bpf_spin_lock(&r->lock);
	if (r->at > then && r->others <= then)
		only = r->last;
	bpf_spin_unlock(&r->lock);
	return only;
}

#endif
