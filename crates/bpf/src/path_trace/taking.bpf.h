/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a VMM's thread holds off a tap that the VMM serves itself, and how it signals that: the steps of the
 * probes in vmm.bpf.h. serving.bpf.h says which interrupt is the queue's.
 *
 *   looks_at_tap(), finds()   it looks for a packet, and finds one or none
 *   has_read()                it has got one
 *   thread_of_vmm_signals()   it tells KVM to send an interrupt
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

	if (!s || !s->interrupt.known || s->in_batches)
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
	c->reads = packet ? READS_PACKET : READS_NOTHING;
	if (!packet)
		return;
	c->taking = *q;
	c->ready_before = c->spent[STATE_READY];
}

/* The thread has got a packet off the tap. If it found none when it looked, one has come in between: at once,
 * or long after, if the thread has lost its CPU meanwhile. Of that one it is not known how it is signalled. */
static __always_inline void has_read(struct clock *c)
{
	if (c->reads != READS_NOTHING)
		return;
	count(COUNT_UNIDENTIFIED);
	c->reads = READS_UNSEEN;
}

/* The VMM's thread tells KVM to send this interrupt. */
static __always_inline void vmm_signals(struct clock *c, u32 vm, u64 interrupt)
{
	struct tap_queue q = c->taking;
	struct served *s = bpf_map_lookup_elem(&served, &q);
	u64 now = bpf_ktime_get_ns();

	/* for the packet that was not seen */
	if (c->reads == READS_UNSEEN)
		return give_up_taken(c, now, 0);
	if (!s) {
		struct served fresh = {};

		bpf_map_update_elem(&served, &q, &fresh, BPF_ANY);
		s = bpf_map_lookup_elem(&served, &q);
		if (!s)
			return;
	}
	c->signal.vm = vm;
	/* the queue's own may follow */
	if (is_of_others(c->signal.vm, interrupt, false))
		return;
	if (!learn(&s->interrupt, interrupt))
		return give_up_taken(c, now, c->signal.vm);
	/* only of the queue's own: another device's may come at any time */
	if (c->reads == READS_NOTHING)
		s->in_batches = 1;
	c->signal.queue = q;
	c->signal.sent = 0;
	c->signal.entry_requested = 0;
	c->signal.written = 0;
	c->signal.begun = now;
}

/* A thread that has looked at a tap tells KVM to send this interrupt. After it has sent a frame, one that
 * comes without packets may be of the tap's transmit queue, which may share it with the receive queue. */
static __always_inline void thread_of_vmm_signals(struct clock *c, u32 vm, u64 interrupt)
{
	if (c->taking.ifindex)
		vmm_signals(c, vm, interrupt);
	else if (!c->sends && c->reads != READS_UNSEEN)
		is_of_others(vm, interrupt, true);
}

#endif
