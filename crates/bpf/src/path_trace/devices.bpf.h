/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Interrupts of devices that were given to a VM (VFIO): from the host's interrupt handler to the vCPU that
 * accepts the guest's interrupt. The host sees nothing of what the device has for the guest.
 *
 *   vfio_msihandler, entry       on_device_irq        the device interrupts this CPU
 *     kvm_arch_set_irq_inatomic  on_irqfd             which VM is to be interrupted  \ in the same interrupt,
 *     kvm_apic_accept_irq        on_accept_irq        which vCPU accepted that       / by the eventfd's irqfd
 *   vfio_msihandler, exit        on_device_irq_done   if none was seen to
 *   kvm_entry                    on_kvm_entry         the vCPU enters with it
 *
 * Handlers of interrupts are not interrupted by others, so what happens on this CPU while one runs is its
 * doing. Not seen are interrupts that the IOMMU posts to a vCPU by itself, those that the VMM handles in user
 * space, and the vCPU of those that KVM leaves to a kernel thread because it would have to sleep.
 *
 * Nothing of this runs for other interrupts; and the probes that it shares read one byte first, which is 0 if
 * no traced VM has such a device.
 */
#ifndef TEIJI_DEVICES_BPF_H
#define TEIJI_DEVICES_BPF_H

struct device_irq {
	u64 began; /* when its handler began; 0: none runs on this CPU */
	u32 irq;   /* the host's number */
	u32 vm; /* a traced VM that KVM was told to interrupt, and no vCPU of which has accepted yet; or 0 */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct device_irq);
} device_irqs SEC(".maps");

/* The interrupt of a device whose handler runs on this CPU; NULL if none does. */
static __always_inline struct device_irq *handled_here(void)
{
	u32 zero = 0;
	struct device_irq *d = bpf_map_lookup_elem(&device_irqs, &zero);

	return d && d->began ? d : NULL;
}

SEC("fentry/vfio_msihandler")
int BPF_PROG(on_device_irq, int irq)
{
	u32 zero = 0;
	struct device_irq *d = followed.devices ? bpf_map_lookup_elem(&device_irqs, &zero) : NULL;

	if (!d)
		return 0;
	d->irq = irq;
	d->vm = 0;
	d->began = bpf_ktime_get_ns();
	return 0;
}

/* Returns whether KVM is told by the handler of a device's interrupt. */
static __always_inline bool device_interrupts_vm(struct kvm *kvm)
{
	struct device_irq *d = handled_here();
	u32 vm;

	if (!d)
		return false;
	vm = READ(kvm, userspace_pid);
	if (hinted(vm, HINT_VM) && bpf_map_lookup_elem(&vms, &vm))
		d->vm = vm;
	return true;
}

static __always_inline struct rec_irq *reserve_device_irq(const struct device_irq *d, u64 now, u8 delivery)
{
	struct rec_irq *r = reserve(sizeof(*r));

	if (!r)
		return NULL;
	fill_head(&r->head, now, REC_DEVICE_IRQ, delivery, d->irq);
	r->signalled = d->began;
	r->tid = 0;
	r->vm = d->vm;
	return r;
}

/* Returns whether a vCPU has accepted what a device's interrupt has sent. As interrupt_accepted(). */
static __always_inline bool device_interrupt_accepted(u32 apicid, u8 vector)
{
	struct device_irq *d = handled_here();
	struct vcpu_key target = {.vcpu = apicid};
	u64 now, before = 0, spent[STATES] = {};
	u8 state = STATE_UNKNOWN, delivery = DELIVERY_ACCEPTED;
	struct rec_irq *r;
	struct clock *c;
	bool unseen;

	if (!d)
		return false;
	if (!d->vm)
		return true;
	now = bpf_ktime_get_ns();
	target.vm = d->vm;
	c = vcpu_clock(&target);
	unseen = c && (!c->apic || delivered_by_hardware(c));
	if (unseen)
		before = request_entry(c, now);
	if (c)
		state = clock_peek(c, now, spent);
	if (unseen) {
		vector = 0;
		if (state == STATE_GUEST) {
			delivery = DELIVERY_POSTED;
			cancel_request(c, now, before);
		}
	} else {
		note_accepted(&target, vector, now);
	}
	r = reserve_device_irq(d, now, delivery);
	if (r) {
		fill_vcpu(r, &target, vcpu_index(c), state, spent);
		r->vector = vector;
		submit(r);
	}
	d->vm = 0;
	return true;
}

SEC("fexit/vfio_msihandler")
int BPF_PROG(on_device_irq_done)
{
	struct device_irq *d = followed.devices ? handled_here() : NULL;
	struct rec_irq *r;

	if (!d)
		return 0;
	if (d->vm) {
		r = reserve_device_irq(d, bpf_ktime_get_ns(), DELIVERY_UNKNOWN);
		if (r) {
			r->vcpu = 0;
			r->index = NOT_KNOWN;
			r->vector = 0;
			r->state = STATE_UNKNOWN;
			__builtin_memset(r->clock, 0, sizeof(r->clock));
			submit(r);
		}
	}
	d->began = 0;
	return 0;
}

#endif
