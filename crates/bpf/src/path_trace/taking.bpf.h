/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a VMM's thread holds off a tap that the VMM serves itself, and how it signals that: the steps of the
 * probes in vmm.bpf.h. serving.bpf.h says which interrupt is the queue's.
 *
 *   looks_at_tap(), finds()   it looks for a packet, and finds one or none
 *   has_read()                it has got one
 *   thread_of_vmm_signals()   it tells KVM to send an interrupt
 *   sends_frame()             it sends a frame of the guest
 *
 * A packet that comes after the look is got and not seen: at once, or long after, if the thread loses its CPU
 * in between. Neither the queue's interrupt nor how the VMM signals is learnt from the interrupt that is sent
 * next.
 *
 * Some VMMs signal each packet, some the last of several, before they sleep or when the guest's ring is full.
 * It is learnt which by each interrupt of the queue: one that comes after a look in vain speaks for several,
 * one that comes right after a packet for each.
 */
#ifndef TEIJI_TAKING_BPF_H
#define TEIJI_TAKING_BPF_H

/* It cannot be told how the packets that the thread has taken are signalled: they are counted. If the queue's
 * interrupt was sent for them, the record says since when. vm: it is not learnt yet whose the interrupt is
 * that was sent; 0 for other reasons. */
static __always_inline void give_up_taken(struct clock *c, u64 now, u32 vm)
{
	c->signal.queue = c->taking;
	emit_unknown(c, now, c->signal.begun ? c->signal.begun : now, vm, 0);
	c->signal.begun = 0;
	c->taking.ifindex = 0;
}

/*
 * The thread looks for the next packet, and has not signalled the last one. A VMM that signals each packet
 * has written it to the ring before, and found that the guest wants no interrupt: see packets_written(). If
 * the thread has lost its CPU meanwhile, the guest may have handled the packet and halted. A VMM that signals
 * after the last packet may signal still.
 */
static __always_inline void not_signalled(struct clock *c, u64 now)
{
	struct tap_queue q = c->taking;
	struct served *s = bpf_map_lookup_elem(&served, &q);
	struct vcpu_key *target = bpf_map_lookup_elem(&target_vcpus, &q);
	struct clock *vcpu = target ? vcpu_clock(target) : NULL;
	u64 replaced, spent[STATES];
	struct rec_irq *r;
	u8 state;

	if (!s || !s->interrupt.known || s->batches > 0)
		return;
	if (!vcpu || c->spent[STATE_READY] != c->ready_before)
		return give_up_taken(c, now, 0);
	replaced = request_entry(vcpu, now);
	state = clock_peek(vcpu, now, spent);
	if (state == STATE_GUEST)
		cancel_request(vcpu, now, replaced);
	c->signal.queue = q;
	r = reserve_irq(c, now, DELIVERY_SUPPRESSED, now);
	if (r) {
		fill_vcpu(r, target, vcpu_index(vcpu), state, spent);
		submit(r);
	}
	c->taking.ifindex = 0;
}

/* The thread looks at a tap: what it holds by then is signalled, or not known to be. */
static __always_inline void looks_at_tap(struct clock *c, u64 now, const struct tap_queue *q)
{
	/* an interrupt was sent, and no vCPU was seen to accept it; or the thread serves another queue */
	if (c->taking.ifindex &&
	    (c->signal.begun || c->taking.ifindex != q->ifindex || c->taking.queue != q->queue))
		give_up_taken(c, now, 0);
	else if (c->taking.ifindex)
		not_signalled(c, now);
	c->signal.begun = 0;
}

/* It finds a packet there, or none. */
static __always_inline void finds(struct clock *c, const struct tap_queue *q, bool packet)
{
	if (packet) {
		c->reads = READS_PACKET;
		c->taking = *q;
		c->ready_before = c->spent[STATE_READY];
	} else if (c->reads != READS_UNSEEN) {
		c->reads = READS_NOTHING;
	}
}

/* It has got a packet. Returns whether that one was not seen. */
static __always_inline bool has_read(struct clock *c)
{
	bool seen = c->reads == READS_PACKET;

	c->reads = seen ? READS_GOT : READS_UNSEEN;
	return !seen;
}

/* How far the evidence goes, either way: guests are moved, and VMMs are updated under them. */
#define MOST_BATCHES 4

/* The queue's interrupt comes after a look in vain, or right after a packet. */
static __always_inline void learn_batches(struct served *s, bool in_vain)
{
	if (in_vain ? s->batches < MOST_BATCHES : s->batches > -MOST_BATCHES)
		s->batches += in_vain ? 1 : -1;
}

/* The thread sends a frame: what interrupt it sends next may be for that. */
static __always_inline void sends_frame(struct clock *c, u64 now)
{
	if (c->taking.ifindex)
		give_up_taken(c, now, 0);
	c->signal.begun = 0;
}

/* The VMM's thread tells KVM to send this interrupt, while it holds packets. */
static __always_inline void vmm_signals(struct clock *c, u32 vm, u64 interrupt)
{
	struct tap_queue q = c->taking;
	struct served *s = bpf_map_lookup_elem(&served, &q);
	u64 now = bpf_ktime_get_ns(), known;

	if (!s) {
		struct served fresh = {};

		bpf_map_update_elem(&served, &q, &fresh, BPF_ANY);
		s = bpf_map_lookup_elem(&served, &q);
		if (!s)
			return;
	}
	c->signal.vm = vm;
	/* the queue's own may follow */
	if (is_of_others(vm, interrupt, false))
		return;
	known = s->interrupt.known;
	if (c->reads == READS_UNSEEN) {
		/* for the unseen packet, and for the others if they are signalled together */
		c->reads = READS_GOT;
		if (interrupt != known || s->batches <= 0)
			return give_up_taken(c, now, 0);
	} else {
		if (!learn(&s->interrupt, interrupt))
			return give_up_taken(c, now, vm);
		if (interrupt != known)
			s->batches = 0;
		learn_batches(s, c->reads == READS_NOTHING);
	}
	c->signal.queue = q;
	c->signal.sent = 0;
	c->signal.entry_requested = 0;
	c->signal.written = 0;
	c->signal.begun = now;
}

/* It does so while it holds none, as it has looked in vain. It does hold some if it was not known that it
 * signals several together; the last queue that it took packets off is that of its last signal. */
static __always_inline void signals_alone(struct clock *c, u32 vm, u64 interrupt)
{
	struct tap_queue q = c->signal.queue;
	struct served *s = bpf_map_lookup_elem(&served, &q);

	if (s && s->interrupt.known == interrupt)
		learn_batches(s, true);
	else
		is_of_others(vm, interrupt, true);
}

/* A thread that has looked at a tap tells KVM to send this interrupt. After it has sent a frame, one that
 * comes without packets may be of the tap's transmit queue, which may share it with the receive queue. */
static __always_inline void thread_of_vmm_signals(struct clock *c, u32 vm, u64 interrupt)
{
	if (c->taking.ifindex)
		vmm_signals(c, vm, interrupt);
	else if (c->reads == READS_UNSEEN)
		c->reads = READS_GOT;
	else if (c->reads == READS_NOTHING && !c->sends)
		signals_alone(c, vm, interrupt);
}

#endif
