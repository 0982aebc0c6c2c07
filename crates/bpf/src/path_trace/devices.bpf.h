/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Interrupts of devices that were given to a VM (VFIO): from the host's interrupt handler to the vCPU that
 * accepts the guest's interrupt. The host sees nothing of what the device has for the guest.
 *
 *   vfio_msihandler, entry       device_irq_begins()          the device interrupts this CPU
 *     kvm_arch_set_irq_inatomic  device_interrupts_vm()       which VM is to be interrupted
 *     kvm_apic_accept_irq        device_interrupt_accepted()  which vCPU accepted that
 *   vfio_msihandler, exit        device_irq_ends()            if none was seen to
 *   kvm_entry                    on_kvm_entry                 the vCPU enters with it
 *
 * The second and third happen in the same interrupt, by the irqfd of the eventfd.
 *
 * Handlers of interrupts are not interrupted by others, so what happens on this CPU while one runs is its
 * doing. (With PREEMPT_RT they are threads: then the thread has to be the same; of one that was moved to
 * another CPU meanwhile nothing is told.) Not seen are interrupts that the IOMMU posts to a vCPU by itself,
 * those that the VMM handles in user space, and the vCPU of those that KVM leaves to a kernel thread because
 * it would have to sleep. Which interrupts are a NIC's, user space knows; it writes those that are not.
 *
 * Nothing of this runs for other interrupts; and the probes that it shares read one byte first, which is 0 if
 * no traced VM has been given a NIC. They are in interrupts.bpf.h.
 */
#ifndef TEIJI_DEVICES_BPF_H
#define TEIJI_DEVICES_BPF_H

struct device_irq {
	u64 began; /* when its handler began; 0: none runs on this CPU */
	u64 task;  /* that ran, or was interrupted, then */
	u32 irq;   /* the host's number */
	u32 vm; /* a traced VM that KVM was told to interrupt, and no vCPU of which has accepted yet; or 0 */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct device_irq);
} device_irqs SEC(".maps");

/*
 * Interrupts of other devices of such VMs, such as disks, by the host's number, and until when user space
 * believes that; ns. They are not told: a VM may have many.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, u64);
} other_irqs SEC(".maps");

/* The interrupt of a device whose handler runs now; NULL if none does. */
static __always_inline struct device_irq *handled_here(void)
{
	u32 zero = 0;
	struct device_irq *d = bpf_map_lookup_elem(&device_irqs, &zero);

	return d && d->began && d->task == bpf_get_current_task() ? d : NULL;
}

static __always_inline void device_irq_begins(u32 irq)
{
	u32 zero = 0;
	struct device_irq *d = followed.devices ? bpf_map_lookup_elem(&device_irqs, &zero) : NULL;
	u64 now, *until;

	if (!d)
		return;
	now = bpf_ktime_get_ns();
	until = bpf_map_lookup_elem(&other_irqs, &irq);
	if (until && now < *until)
		return;
	d->irq = irq;
	d->vm = 0;
	d->task = bpf_get_current_task();
	d->began = now;
}

/* KVM is told to interrupt a VM, by the handler of a device's interrupt. */
static __always_inline void device_interrupts_vm(struct device_irq *d, u32 vm)
{
	if (hinted(vm, HINT_DEVICES) && bpf_map_lookup_elem(&vms, &vm))
		d->vm = vm;
}

static __always_inline void tell_device_irq(const struct device_irq *d, u64 now, u8 delivery, u32 vcpu,
					    u8 vector, bool by_hardware)
{
	struct rec_device_irq *r = reserve(sizeof(*r));

	if (!r)
		return;
	fill_head(&r->head, now, REC_DEVICE_IRQ, delivery, d->irq);
	r->began = d->began;
	r->vm = d->vm;
	r->vcpu = vcpu;
	r->vector = vector;
	r->by_hardware = by_hardware;
	__builtin_memset(r->pad, 0, sizeof(r->pad));
	submit(r);
}

/*
 * A vCPU accepts an interrupt. Returns whether this is within the handler of a device's interrupt, whose
 * doing it is then, and not a vhost worker's. As interrupt_accepted().
 */
static __always_inline bool device_interrupt_accepted(u32 apicid, u8 vector)
{
	struct device_irq *d = handled_here();
	struct vcpu_key target = {.vcpu = apicid};
	u64 now, before, spent[STATES];
	u8 delivery = DELIVERY_ACCEPTED;
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
	if (unseen) {
		before = request_entry(c, now);
		if (clock_copy(c, now, spent, false) == STATE_GUEST) {
			delivery = DELIVERY_POSTED;
			cancel_request(c, now, before);
		}
	} else {
		note_accepted(&target, vector, now);
	}
	tell_device_irq(d, now, delivery, apicid, vector, unseen);
	d->vm = 0;
	return true;
}

/* Also if no VM with such a device is traced any longer. */
static __always_inline void device_irq_ends(void)
{
	struct device_irq *d = handled_here();

	if (!d)
		return;
	if (d->vm)
		tell_device_irq(d, bpf_ktime_get_ns(), DELIVERY_UNKNOWN, 0, 0, false);
	d->began = 0;
}

#endif
