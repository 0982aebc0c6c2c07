/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A vhost worker's signal to a guest: vhost_add_used_and_signal_n() writes the packets that the worker has
 * taken to the guest's ring, and sends an interrupt if the guest wants one. Here is what is known of a signal
 * from its beginning to its record, with an interrupt and without; also if the kernel skipped a run of a
 * probe, as it does while another thread is preempted within the same probe on that CPU. The probes are in
 * interrupts.bpf.h and path_trace.bpf.c. Of taps that the VMM serves itself, taking.bpf.h says this.
 *
 *   function of the kernel               probe           calls
 *   handle_rx, entry                     on_handle_rx    round_begins()
 *   tun_recvmsg, entry                   on_tun_recvmsg  packet_taken()
 *   vhost_add_used_and_signal_n, entry   on_signal       signal_begins()
 *     vhost_add_used_n, exit             on_written      packets_written()
 *     kvm_arch_set_irq_inatomic, entry   on_irqfd        note_signalled_vm()     \ if the guest wants an
 *     kvm_apic_accept_irq                on_accept_irq   interrupt_accepted()    / interrupt
 *   vhost_add_used_and_signal_n, exit    on_signalled    signal_ends()
 *   tun_sendmsg, entry                   on_tun_sendmsg  notice_skipped_signal()
 *   vhost_add_used_and_signal_n, entry   on_signal       sent_frames_signalled()   of the transmit queue
 *
 * For macvtaps it is tap_recvmsg and tap_sendmsg (macvtap.bpf.h).
 *
 * handle_rx() takes packets in a loop, signals them, and leaves none unsignalled when it returns, but for
 * those that it could not write, as the guest's buffers were too small or not mapped: it discards these.
 * vhost counts the buffers that it has written (last_used_idx). So whether packets were signalled is known
 * from that count also if all probes of the signal were skipped.
 */
#ifndef TEIJI_SIGNALS_BPF_H
#define TEIJI_SIGNALS_BPF_H

/*
 * ns from the beginning of a signal to packets_written(). It usually takes less than 1 us, in an emulated
 * machine about 10 us; more shows that something held the worker up. Without this limit, that the vCPU was in
 * guest mode meanwhile proves nothing: a busy guest nearly always is.
 */
#define STALL_NS 50000

/* The clock of a vCPU; NULL if its thread is not known, or turned out to run another vCPU. */
static __always_inline struct clock *vcpu_clock(const struct vcpu_key *vcpu)
{
	struct clock *c = clock_at(bpf_map_lookup_elem(&vcpus, vcpu));

	return c && c->vm == vcpu->vm && c->vcpu == vcpu->vcpu ? c : NULL;
}

static __always_inline u16 vcpu_index(const struct clock *c)
{
	return c && c->index < NOT_KNOWN ? c->index : NOT_KNOWN;
}

/*
 * Asks for a record of the vCPU's next entry, even if no interrupt is injected with it. This comes before the
 * vCPU's state is read: an entry in between is seen by one or the other. Returns what cancel_request() needs.
 */
static __always_inline u64 request_entry(struct clock *vcpu, u64 now)
{
	return __sync_lock_test_and_set(&vcpu->entry_requested, now);
}

/* The record is not needed for what was asked at `now`, but perhaps for what had been before. */
static __always_inline void cancel_request(struct clock *vcpu, u64 now, u64 replaced)
{
	__sync_val_compare_and_swap(&vcpu->entry_requested, now, replaced);
}

static __always_inline bool is_halted(u8 state)
{
	return state == STATE_ASLEEP || state == STATE_POLL;
}

/* model::event::Interrupt::SKIPPED: stands for the vector of a signal of which a run of a probe was skipped.
 */
#define VECTOR_SKIPPED 255

/* Reserves a record of a signal with the event time `now` and with `signalled`; what either means for each
 * `delivery`, model::event::Interrupt says. The caller fills in the vCPU, and submits it. */
static __always_inline struct rec_irq *reserve_irq(struct clock *worker, u64 now, u8 delivery, u64 signalled)
{
	struct rec_irq *r = reserve(sizeof(*r));

	if (!r)
		return NULL;
	fill_head(&r->head, now, REC_IRQ, delivery, worker->signal.queue.ifindex);
	r->signalled = signalled;
	r->tid = current_tid();
	r->vector = 0;
	return r;
}

static __always_inline void fill_vcpu(struct rec_irq *r, const struct vcpu_key *vcpu, u16 index, u8 state,
				      const u64 *clock)
{
	r->vm = vcpu->vm;
	r->vcpu = vcpu->vcpu;
	r->index = index;
	r->state = state;
	__builtin_memcpy(r->clock, clock, sizeof(r->clock));
}

/* It is not known which vCPU received the packets, nor what it did. vm: the VM that KVM was told to
 * interrupt, 0 if not known. */
static __always_inline void emit_unknown(struct clock *worker, u64 now, u64 signalled, u32 vm, u8 vector)
{
	struct rec_irq *r = reserve_irq(worker, now, DELIVERY_UNKNOWN, signalled);

	if (!r)
		return;
	r->vm = vm;
	r->vcpu = 0;
	r->index = NOT_KNOWN;
	r->vector = vector;
	r->state = STATE_UNKNOWN;
	__builtin_memset(r->clock, 0, sizeof(r->clock));
	submit(r);
}

/* It is not known when the guest received the packets that the worker took until `upto`. */
static __always_inline void emit_skipped(struct clock *worker, u64 now, u64 upto)
{
	emit_unknown(worker, now, upto, 0, VECTOR_SKIPPED);
}

/*
 * Called where no signal can be under way. If one has not ended, the kernel skipped on_signalled(): its
 * packets would be taken for those of the next signal. `now`: see packet_taken().
 */
static __always_inline void end_previous_signal(struct clock *worker, u64 now)
{
	struct signal *s = &worker->signal;

	if (!s->begun || worker->actor != ACTOR_WORKER || worker->taking.ifindex)
		return;
	if (!s->sent)
		emit_skipped(worker, now - 1, s->begun);
	s->begun = 0;
	worker->holds = HOLDS_NOTHING;
}

/*
 * The worker takes a packet off a tap, at `now`. If it holds others, and has written to the guest's ring
 * since it took them, it has signalled them, and the kernel skipped the probes at both ends of the signal.
 * That is told with a time just before the packet's, so that it sorts before it.
 */
static __always_inline void packet_taken(struct clock *worker, u64 now, const struct tap_queue *q,
					 u16 last_used)
{
	end_previous_signal(worker, now);
	if (worker->holds && worker->last_used != last_used)
		emit_skipped(worker, now - 1, now - 1);
	worker->holds = HOLDS_PACKETS;
	worker->last_used = last_used;
	worker->signal.queue = *q;
	worker->signal.vm = 0;
}

/*
 * The worker does something that it does only when it has signalled what it took: it begins to empty a tap,
 * or sends frames of the guest. If it holds packets still, the kernel skipped the probes at both ends of
 * their signal, or vhost has discarded them. (Those for which the guest's buffers were too small the kernel
 * frees as dropped: see drops.bpf.h.)
 */
static __always_inline void notice_skipped_signal(struct clock *worker, u16 last_used)
{
	u64 now;

	if (!worker->signal.begun && !worker->holds)
		return;
	now = bpf_ktime_get_ns();
	end_previous_signal(worker, now);
	if (worker->holds && worker->last_used != last_used)
		emit_skipped(worker, now, now);
	worker->holds = HOLDS_NOTHING;
}

/* A worker begins to empty a tap. If it was not seen with this net before, the count was not known when it
 * took the packets that it holds, so no skipped signal can be told. */
static __always_inline void round_begins(struct clock *worker, u64 net, u16 last_used)
{
	if (worker->net == net)
		notice_skipped_signal(worker, last_used);
	else
		worker->holds = HOLDS_NOTHING;
	worker->net = net;
}

/* vhost has notified the guest of frames that it has sent for it: no signal of received packets. */
static __always_inline void sent_frames_signalled(struct clock *worker, u16 last_used)
{
	notice_skipped_signal(worker, last_used);
	worker->signal.begun = 0;
}

/* A signal begins, of the packets that the worker has taken. */
static __always_inline void signal_begins(struct clock *worker, const struct tap_queue *q)
{
	struct signal *s = &worker->signal;
	struct vcpu_key *target;
	struct clock *vcpu = NULL;
	u64 now;

	if (s->begun)
		end_previous_signal(worker, bpf_ktime_get_ns());
	target = bpf_map_lookup_elem(&target_vcpus, q);
	s->queue = *q;
	s->sent = 0;
	s->entry_requested = 0;
	s->vm = 0;
	s->written = 0;
	s->arrival_unknown = 0;
	s->target.vm = 0;
	if (target) {
		s->target = *target;
		vcpu = vcpu_clock(target);
	}
	/* before the write: see packets_written() */
	now = bpf_ktime_get_ns();
	/* a vCPU whose clock is not known has not entered its guest yet */
	s->clock[STATE_GUEST] = vcpu ? clock_guest_ns(vcpu, now) : 0;
	s->begun = now;
}

/*
 * The packets are in the ring. If the guest has disabled interrupts of the queue, it polls, or will poll when
 * it runs: so it has the packets now if its vCPU is in guest mode, else with the next entry. Whether it has
 * is known only when the signal ends; if the worker loses its CPU until then, the guest may have handled the
 * packets and halted. So the state of the vCPU is kept, and a record of its next entry requested, right after
 * the write. (vhost_signal() would be the next function, but the compiler inlines it.)
 *
 * The worker may lose its CPU between the write and this probe, too. If the vCPU was in guest mode since the
 * signal began, and halted (a guest that polls does so only when it has handled what is in the ring), or it
 * took longer than STALL_NS to come here, the guest may have received the packets at any time since the
 * signal began.
 *
 * unseen: this is the end of the signal; on_written() did not run, because the kernel skipped it or lacks its
 * function. So the write was longer ago, and whatever the vCPU did since the signal began, it may have done
 * with the packets or without, unless it was in guest mode all the time, or not at all.
 */
static __always_inline void packets_written(struct signal *s, bool unseen)
{
	struct clock *c = s->target.vm ? vcpu_clock(&s->target) : NULL;
	u64 now = bpf_ktime_get_ns(), in_guest = s->clock[STATE_GUEST];
	s64 took = 0;
	bool ran, stayed;

	if (c) {
		s->replaced = request_entry(c, now);
		s->state = clock_peek(c, now, s->clock);
		/* read anew: the worker may have lost its CPU just before the look at the vCPU */
		took = bpf_ktime_get_ns() - s->begun;
		ran = s->clock[STATE_GUEST] != in_guest;
		stayed = s->state == STATE_GUEST && s->clock[STATE_GUEST] - in_guest == now - s->begun;
		/* in guest mode without having been there before: it entered after `now` */
		if (took > STALL_NS)
			s->arrival_unknown = ran || s->state == STATE_GUEST;
		else
			s->arrival_unknown = ran && (unseen ? !stayed : is_halted(s->state));
		s->entry_requested = s->state != STATE_GUEST && !s->arrival_unknown;
		if (!s->entry_requested)
			cancel_request(c, now, s->replaced);
	} else {
		s->state = STATE_UNKNOWN;
	}
	/* of a stalled worker it says how long that took */
	s->written = s->arrival_unknown ? s->begun + took : now;
}

/* An interrupt is sent after all: the entry that takes it will be seen, or is requested anew. */
static __always_inline void drop_request(struct clock *worker)
{
	struct signal *s = &worker->signal;
	struct clock *c = s->entry_requested ? vcpu_clock(&s->target) : NULL;

	s->entry_requested = 0;
	if (c)
		cancel_request(c, s->written, s->replaced);
}

/* KVM is told to interrupt this VM, in the context of the worker. */
static __always_inline void note_signalled_vm(struct clock *worker, u32 vm)
{
	if (worker->signal.begun || worker->holds)
		worker->signal.vm = vm;
}

/*
 * Whether KVM lets the hardware deliver a vCPU's interrupts. KVM may change this at any time, so it is read
 * at each interrupt; an entry only records the address. Not read directly: in Linux 6.12 only the BTF of the
 * module has the type.
 */
static __always_inline bool delivered_by_hardware(const struct clock *vcpu)
{
	struct kvm_lapic *apic = (void *)vcpu->apic;

	return apic && READ(apic, apicv_active);
}

/* A vCPU has accepted an interrupt, whose entry is to be told. */
static __always_inline void note_accepted(const struct vcpu_key *target, u8 vector, u64 now)
{
	struct vector_key key = {.vm = target->vm, .vcpu = target->vcpu, .vector = vector};
	u64 *at = bpf_map_lookup_elem(&accepted, &key);

	/* in place: to replace an entry takes another one, and locks */
	if (at)
		__sync_lock_test_and_set(at, now);
	else
		bpf_map_update_elem(&accepted, &key, &now, BPF_ANY);
}

/*
 * A vCPU has accepted an interrupt, in the context of the worker. A host interrupt may come in between, and
 * send a guest another one.
 */
static __always_inline void interrupt_accepted(struct clock *worker, u32 apicid, u8 vector)
{
	struct clock *c;
	struct vcpu_key target = {};
	struct tap_queue q;
	struct rec_irq *r;
	u64 now, before = 0, spent[STATES];
	u16 index;
	bool unseen;
	u8 state, delivery = DELIVERY_ACCEPTED;

	if (!(worker->signal.begun || worker->holds) || !worker->signal.vm || interrupted())
		return;
	now = bpf_ktime_get_ns();
	target.vm = worker->signal.vm;
	target.vcpu = apicid;
	q = worker->signal.queue;
	bpf_map_update_elem(&target_vcpus, &q, &target, BPF_ANY);
	/* the kernel skipped on_signal(): see signal_ends() */
	if (!worker->signal.begun)
		return;
	worker->signal.sent = 1;
	drop_request(worker);

	c = vcpu_clock(&target);
	index = vcpu_index(c);
	/*
	 * If hardware delivers the interrupt, no injection will be seen; before the first entry of the vCPU
	 * it is not known whether it does. In guest mode the interrupt arrives at once, else with the next
	 * entry.
	 */
	unseen = c && (!c->apic || delivered_by_hardware(c));
	if (unseen)
		before = request_entry(c, now);
	state = clock_read_or_zeros(c, now, spent, false);
	if (unseen) {
		vector = 0;
		if (state == STATE_GUEST) {
			delivery = DELIVERY_POSTED;
			cancel_request(c, now, before);
		}
	} else {
		note_accepted(&target, vector, now);
	}

	r = reserve_irq(worker, now, delivery, worker->signal.begun);
	if (r) {
		fill_vcpu(r, &target, index, state, spent);
		r->vector = vector;
		submit(r);
	}
	/* a VMM's thread, whose signal has no other end that is seen; not before the record is submitted, as
	 * Linux 6.1 forgets that it may be missing */
	if (worker->taking.ifindex) {
		worker->taking.ifindex = 0;
		worker->signal.begun = 0;
	}
}

/*
 * A signal has ended: tells what it was, unless an interrupt did. One of which the kernel skipped on_signal()
 * is one of received packets if the worker holds some: see notice_skipped_signal().
 */
static __always_inline void signal_ends(struct clock *worker)
{
	struct signal *s = &worker->signal;
	struct rec_irq *r;
	bool known, unknown, write_unseen;
	u64 at;

	if (!s->begun && worker->holds && worker->actor == ACTOR_WORKER) {
		at = bpf_ktime_get_ns();
		emit_skipped(worker, at, at);
	}
	if (s->begun && !s->sent) {
		write_unseen = !s->written && !s->vm;
		if (write_unseen)
			packets_written(s, true);
		known = s->written && s->target.vm && !s->vm;
		unknown = known && s->arrival_unknown;
		at = unknown ? s->begun : s->written ? s->written : bpf_ktime_get_ns();
		/* if it is not known when the guest received them: see model::event::Delivery::Unknown */
		r = reserve_irq(worker, at, known && !unknown ? DELIVERY_SUPPRESSED : DELIVERY_UNKNOWN,
				unknown ? s->written : s->begun);
		if (r) {
			r->vm = known ? s->target.vm : s->vm;
			r->vcpu = known ? s->target.vcpu : 0;
			r->index = known ? vcpu_index(vcpu_clock(&s->target)) : NOT_KNOWN;
			r->vector = unknown && write_unseen && settings.writes_are_seen ? VECTOR_SKIPPED : 0;
			r->state = known ? s->state : STATE_UNKNOWN;
			/* of no meaning if the state is not known */
			__builtin_memcpy(r->clock, s->clock, sizeof(r->clock));
			submit(r);
		}
	}
	s->begun = 0;
	s->vm = 0;
	worker->holds = HOLDS_NOTHING;
}

/*
 * The time of the record of an entry with an interrupt that was accepted at `upto`: `now`, but after every
 * signal that the entry covers, as it may have been accepted since `now` was read.
 */
static __always_inline u64 entry_time(u64 now, u64 upto)
{
	return now > upto ? now : upto + 1;
}

#endif
