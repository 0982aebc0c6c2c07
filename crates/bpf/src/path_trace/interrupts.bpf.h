/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Probes from vhost's signal to the guest entry that takes the interrupt, and of the vCPU around it. What
 * they keep of a signal, and tell of it: signals.bpf.h.
 */
#ifndef TEIJI_INTERRUPTS_BPF_H
#define TEIJI_INTERRUPTS_BPF_H

/* The queue of a macvtap whose socket this is. A socket of another kind has no traced tap in the same place.
 */
static __always_inline bool macvtap_of(void *sock, struct tap_queue *q)
{
	struct tap_queue___of_tap *tap;
	struct net_device *dev;

	if (!bpf_core_type_exists(struct tap_queue___of_tap))
		return false;
	tap = sock - bpf_core_field_offset(struct tap_queue___of_tap, sock);
	dev = READ(READ(tap, tap), dev);
	q->ifindex = READ(dev, ifindex);
	q->queue = READ(tap, queue_index);
	return is_tap(dev, q->ifindex) && is_macvtap(q->ifindex);
}

/* The tap queue behind a vhost-net virtqueue. */
static __always_inline bool queue_of(struct vhost_virtqueue *vq, struct tap_queue *q)
{
	void *sock = READ(vq, private_data);
	struct tun_file *tfile = sock - bpf_core_field_offset(struct tun_file, socket);

	if (!sock)
		return false;
	q->ifindex = READ(READ(READ(tfile, tun), dev), ifindex);
	q->queue = READ(tfile, queue_index);
	return is_tap(READ(READ(tfile, tun), dev), q->ifindex) || (followed.macvtaps && macvtap_of(sock, q));
}

/* virtio-net: queue 0 of a vhost_net receives, queue 1 transmits. */
static __always_inline bool is_vq(struct vhost_virtqueue *vq, int index)
{
	struct vhost_virtqueue **vqs = READ(READ(vq, dev), vqs);

	return read_number(vqs + index, sizeof(vq)) == (u64)vq;
}

/* How many buffers of the guest's ring for received packets vhost has written, modulo 2^16; 0 if it is not
 * known which ring. */
static __always_inline u16 last_used(const struct clock *worker)
{
	struct vhost_net *net = (struct vhost_net *)worker->net;

	return net ? READ(net, vqs[0].vq.last_used_idx) : 0;
}

static __always_inline void look_for_skipped_signal(struct clock *worker)
{
	notice_skipped_signal(worker, worker->holds ? last_used(worker) : 0);
}

SEC("fentry/vhost_add_used_and_signal_n")
int BPF_PROG(on_signal, void *dev, struct vhost_virtqueue *vq)
{
	struct clock *c = clock_of(current_tid());
	struct tap_queue q;

	if (!c)
		return 0;
	if (c->actor == ACTOR_WORKER && is_vq(vq, 0) && queue_of(vq, &q)) {
		learn_vm(c, &q);
		signal_begins(c, &q);
	} else {
		sent_frames_signalled(c, c->holds ? last_used(c) : 0);
	}
	return 0;
}

SEC("fexit/vhost_add_used_n")
int BPF_PROG(on_written)
{
	struct clock *worker = clock_of(current_tid());

	if (worker && worker->signal.begun)
		packets_written(&worker->signal, false);
	return 0;
}

/*
 * The interrupt goes through an irqfd, in the worker's context. (irqfd_wakeup, its caller, and kvm_vcpu_halt,
 * the caller of kvm_arch_no_poll, would be the obvious places; on Linux 7.2 an fentry on them attaches and
 * never runs.)
 */
SEC("fentry/kvm_arch_set_irq_inatomic")
int BPF_PROG(on_irqfd, struct kvm_kernel_irq_routing_entry *entry, struct kvm *kvm)
{
	struct clock *c;

	if (followed.devices) {
		struct device_irq *d = handled_here();

		if (d) {
			device_interrupts_vm(d, READ(kvm, userspace_pid));
			return 0;
		}
	}
	c = clock_of(current_tid());
	if (!c || interrupted())
		return 0;
	/* not kvm->userspace_pid: in Linux 6.12 its offset is too large for a load instruction */
	if (c->reads)
		thread_of_vmm_signals(c, READ(kvm, userspace_pid), route_id(READ(entry, gsi)));
	else
		note_signalled_vm(c, READ(kvm, userspace_pid));
	return 0;
}

/* Programs are attached in this order, and detached in the reverse: each beginning that is seen has an end.
 */
SEC("fexit/vfio_msihandler")
int BPF_PROG(on_device_irq_done)
{
	device_irq_ends();
	return 0;
}

SEC("fentry/vfio_msihandler")
int BPF_PROG(on_device_irq, int irq)
{
	device_irq_begins(irq);
	return 0;
}

SEC("tp_btf/kvm_apic_accept_irq")
int BPF_PROG(on_accept_irq, u32 apicid, u16 delivery_mode, u16 trigger_mode, u8 vector)
{
	struct clock *worker;

	if (followed.devices && device_interrupt_accepted(apicid, vector))
		return 0;
	worker = clock_of(current_tid());
	if (worker)
		interrupt_accepted(worker, apicid, vector);
	return 0;
}

SEC("fexit/vhost_add_used_and_signal_n")
int BPF_PROG(on_signalled)
{
	struct clock *worker = clock_of(current_tid());

	if (worker)
		signal_ends(worker);
	return 0;
}

/*
 * Returns when the interrupt was accepted that this entry injects, and clears that time; 0: it injects none,
 * or none of a worker. KVM injects right before the entry. (Not at the tracepoint kvm_inj_virq: there the
 * vCPU thread can be preempted, and another vCPU's run on that CPU would be skipped.)
 */
static __always_inline u64 take_accepted(const struct kvm_vcpu *vcpu, u32 vm)
{
	struct vector_key key = {.vm = vm, .vcpu = vcpu->vcpu_id, .vector = vcpu->arch.interrupt.nr};
	u64 *at;

	if (!vcpu->arch.interrupt.injected)
		return 0;
	at = bpf_map_lookup_elem(&accepted, &key);
	return at ? __sync_lock_test_and_set(at, 0) : 0;
}

static __always_inline void emit_entry(struct clock *c, u64 now, u64 upto, u8 vector, const u64 *spent)
{
	struct rec_entry *r = reserve(sizeof(*r));

	if (!r)
		return;
	fill_head(&r->head, now, REC_ENTRY, 0, 0);
	r->upto = upto;
	r->vm = c->vm;
	r->vcpu = c->vcpu;
	r->index = vcpu_index(c);
	r->vector = vector;
	r->preempted_by = c->preempted_by;
	__builtin_memcpy(r->clock, spent, STATES * sizeof(u64));
	submit(r);
}

/* Stores which vCPU a thread runs, as its guest entry shows. */
static __always_inline void learn_vcpu(struct clock *c, u32 vm, u32 vcpu)
{
	struct vcpu_key key = {.vm = vm, .vcpu = vcpu};
	struct clock_ref self = c->own;
	u32 *index = bpf_map_lookup_elem(&vcpu_indices, &key);

	if (c->actor != ACTOR_VCPU || c->vm != vm) {
		/* not seen to end, the thread id belonged to another thread before */
		c->actor = ACTOR_VCPU;
		c->index = vcpu;
		c->entry_requested = 0;
		c->signal.begun = 0;
		c->holds = HOLDS_NOTHING;
	}
	if (index)
		c->index = *index;
	c->vm = vm;
	c->vcpu = vcpu;
	bpf_map_update_elem(&vcpus, &key, &self, BPF_ANY);
}

/*
 * The probes of entries and exits run for every VM of the host. So each begins with one byte that says
 * whether the process may be a traced VM's, and the rest is a function of its own: a program saves on its
 * stack what its own function needs, also if it returns at once.
 */
static __noinline int entered(struct kvm_vcpu *vcpu, u64 id)
{
	u64 now, spent[STATES], upto;
	u32 tid = id, vm = id >> 32;
	struct clock *c = clock_of(tid);

	if (!vcpu) /* never; but arguments of a module's tracepoints have to be checked */
		return 0;
	if (!c && !bpf_map_lookup_elem(&vms, &vm))
		return 0;
	now = bpf_ktime_get_ns();
	if (!c) {
		struct clock fresh = {
		    .state = STATE_RUN,
		    .resume = STATE_RUN,
		    .actor = ACTOR_VCPU,
		    .since = now,
		    .vcpu = VCPU_UNKNOWN,
		    .index = vcpu->vcpu_id,
		};

		c = clock_new(tid, &fresh);
		if (!c)
			return 0;
	}
	if (c->vcpu != (u32)vcpu->vcpu_id || c->vm != vm)
		learn_vcpu(c, vm, vcpu->vcpu_id);
	c->apic = (u64)vcpu->arch.apic;
	clock_enters(c, tid, vm, now);
	upto = take_accepted(vcpu, vm);
	if (upto) {
		now = entry_time(now, upto);
		clock_read(c, now, spent);
		emit_entry(c, now, upto, vcpu->arch.interrupt.nr, spent);
	}
	if (c->entry_requested && __sync_lock_test_and_set(&c->entry_requested, 0)) {
		/*
		 * Workers may have asked after `now` was read. So `upto` is read after `entry_requested`
		 * was cleared.
		 */
		upto = bpf_ktime_get_ns();
		clock_read(c, upto, spent);
		/* after a signal with the same time */
		emit_entry(c, upto + 1, upto, 0, spent);
	}
	return 0;
}

SEC("tp_btf/kvm_entry")
int BPF_PROG(on_kvm_entry, struct kvm_vcpu *vcpu)
{
	u64 id = bpf_get_current_pid_tgid();

	return hinted(id >> 32, HINT_VM) ? entered(vcpu, id) : 0;
}

static __noinline int left(u32 tid)
{
	struct clock *c = clock_of(tid);

	if (c)
		clock_set(c, bpf_ktime_get_ns(), STATE_RUN);
	return 0;
}

SEC("tp_btf/kvm_exit")
int BPF_PROG(on_kvm_exit)
{
	u64 id = bpf_get_current_pid_tgid();

	return hinted(id >> 32, HINT_VM) ? left(id) : 0;
}

/* Asked once for each halt, before KVM polls or blocks. */
SEC("fentry/kvm_arch_no_poll")
int BPF_PROG(on_halt, struct kvm_vcpu *vcpu)
{
	u32 tid = current_tid();
	struct clock *c = clock_of(tid);
	u8 state = STATE_ASLEEP;
	u64 now;

	if (!c)
		return 0;
	if (vcpu->halt_poll_ns)
		state = STATE_POLL;
	now = bpf_ktime_get_ns();
	tell_long_exit(c, tid, now);
	clock_set(c, now, state);
	if (is_told(c, STATE_RUN, state))
		tell_state(tid);
	return 0;
}

#endif
