/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Probes of taps that the VMM serves itself (vhost=off): its thread has the part of a vhost worker. That the
 * thread has written packets into the guest's ring is not seen. What is seen is that it takes a packet off
 * the tap, tells KVM to send an interrupt, takes the next packet, sends a guest's frame, sleeps; and that the
 * guest rings a doorbell. serving.bpf.h says which interrupt and doorbell are a queue's, taking.bpf.h what
 * the thread holds and how it signals that.
 *
 *   tun_chr_read_iter            taken off the tap by the VMM         TAP_DEQUEUE
 *   kvm_send_userspace_msi     \ the VMM tells KVM to interrupt       IRQ
 *   kvm_arch_set_irq_inatomic  /
 *   tun_chr_write_iter           the VMM sends the guest's frame; which queue, which thread
 *   ioeventfd_write              the guest rings a doorbell           KICK
 */
#ifndef TEIJI_VMM_BPF_H
#define TEIJI_VMM_BPF_H

/* The queue of a traced tap behind an open /dev/net/tun. */
static __always_inline struct tun_file *queue_of_file(struct kiocb *iocb, struct tap_queue *q)
{
	struct tun_file *tfile;
	struct net_device *dev;

	if (!hinted(bpf_get_current_pid_tgid() >> 32, HINT_SERVED))
		return NULL;
	tfile = READ(READ(iocb, ki_filp), private_data);
	dev = READ(READ(tfile, tun), dev);
	q->ifindex = READ(dev, ifindex);
	if (!is_tap(dev, q->ifindex))
		return NULL;
	q->queue = READ(tfile, queue_index);
	return tfile;
}

/* The packet that a reader of the tap gets next, NULL if there is none. One that comes after this look is
 * got and not seen: on_vmm_has_read() counts it. */
static __always_inline struct sk_buff *next_packet(struct tun_file *tfile)
{
	struct ptr_ring *ring = &tfile->tx_ring;
	int size = READ(ring, size), at = READ(ring, consumer_head);
	void **queue = READ(ring, queue);

	return at >= 0 && at < size ? (struct sk_buff *)read_number(queue + at, sizeof(*queue)) : NULL;
}

SEC("fentry/tun_chr_read_iter")
int BPF_PROG(on_vmm_read, struct kiocb *iocb)
{
	struct tap_queue q = {};
	struct tun_file *tfile = queue_of_file(iocb, &q);
	struct packet p = {};
	const unsigned char *data;
	struct sk_buff *skb;
	struct clock *c;
	u64 now;
	u16 depth;
	u32 len;

	if (!tfile)
		return 0;
	now = bpf_ktime_get_ns();
	c = worker_clock(now);
	if (!c || c->actor != ACTOR_WORKER)
		return 0;
	refer(&workers, &q, c);
	looks_at_tap(c, now, &q);
	skb = next_packet(tfile);
	finds(c, &q, skb);
	if (!skb)
		return 0;
	if ((u64)skb & 1) { /* TUN_XDP_FLAG */
		count(COUNT_UNIDENTIFIED);
		return 0;
	}
	data = READ(skb, data);
	len = READ(skb, len);
	p.len = len;
	if (!parse(data, data + (len - READ(skb, data_len)), AT_TAP | TO_GUEST, &p))
		return 0;
	depth = queue_depth(&tfile->tx_ring, c);
	emit_tap(&p, now, POINT_TAP_DEQUEUE, q.ifindex, c, depth ? depth - 1 : 0, NOT_KNOWN);
	return 0;
}

SEC("fexit/tun_chr_read_iter")
int BPF_PROG(on_vmm_has_read, struct kiocb *iocb, void *to, s64 got)
{
	struct clock *c = clock_of(current_tid());
	struct tap_queue q = {};

	/* the thread may read what is no traced tap */
	if (c && got > 0 && c->reads && (c->reads == READS_PACKET || queue_of_file(iocb, &q)) && has_read(c))
		count(COUNT_UNIDENTIFIED);
	return 0;
}

SEC("fentry/kvm_send_userspace_msi")
int BPF_PROG(on_vmm_msi, struct kvm *kvm, struct kvm_msi *msi)
{
	struct clock *c = clock_of(current_tid());

	if (c && c->reads)
		thread_of_vmm_signals(
		    c, READ(kvm, userspace_pid),
		    message_id(READ(msi, address_lo), READ(msi, address_hi), READ(msi, data)));
	return 0;
}

/* No vCPU has accepted it. */
SEC("fexit/kvm_send_userspace_msi")
int BPF_PROG(on_vmm_msi_sent)
{
	struct clock *c = clock_of(current_tid());

	if (c && c->taking.ifindex && c->signal.begun) {
		give_up_taken(c, bpf_ktime_get_ns(), 0);
	}
	return 0;
}

/* The VMM sends a frame of its guest: until it returns, frames in the stack are from this thread and queue.
 */
SEC("fentry/tun_chr_write_iter")
int BPF_PROG(on_vmm_write, struct kiocb *iocb)
{
	u32 vm = bpf_get_current_pid_tgid() >> 32;
	struct tap_queue q = {};
	struct served *s;
	struct rings *r;
	struct clock *c;
	u64 now, rung;

	if (!queue_of_file(iocb, &q))
		return 0;
	if (!(settings.directions & DIR_OUT)) {
		c = clock_of(current_tid());
		if (c) {
			sends_frame(c, bpf_ktime_get_ns());
			c->sends = 1;
		}
		return 0;
	}
	now = bpf_ktime_get_ns();
	c = worker_clock(now);
	if (!c || c->actor != ACTOR_WORKER)
		return 0;
	sends_frame(c, now);
	c->sending = q;
	refer(&senders, &q, c);
	if (c->sends)
		return 0;
	c->sends = 1;
	r = bpf_map_lookup_elem(&rung_by, &vm);
	rung = r && c->slept_at ? rung_since(r, c->slept_at) : 0;
	if (!rung)
		return 0;
	s = bpf_map_lookup_elem(&served, &q);
	if (!s) {
		struct served fresh = {};

		bpf_map_update_elem(&served, &q, &fresh, BPF_ANY);
		s = bpf_map_lookup_elem(&served, &q);
	}
	if (s && learn(&s->doorbell, rung)) {
		struct doorbell d = {.id = rung, .vm = vm};

		bpf_map_update_elem(&doorbells, &d, &q, BPF_ANY);
	}
	return 0;
}

SEC("fexit/tun_chr_write_iter")
int BPF_PROG(on_vmm_written)
{
	return has_sent();
}

static __always_inline u64 written_value(const void *val, u32 len)
{
	u64 value = 0;

	if (len == 1)
		bpf_probe_read_kernel(&value, 1, val);
	else if (len == 2)
		bpf_probe_read_kernel(&value, 2, val);
	else if (len == 4)
		bpf_probe_read_kernel(&value, 4, val);
	else if (len == 8)
		bpf_probe_read_kernel(&value, 8, val);
	return value;
}

SEC("fexit/ioeventfd_write")
int BPF_PROG(on_doorbell, void *vcpu, void *device, u64 addr, int len, const void *unread, int refused)
{
	struct clock *c = clock_of(current_tid());
	struct doorbell d = {};
	struct rings *r;
	struct served *s;
	struct tap_queue *found, q;
	u64 now, val;

	if (refused || !c || c->actor != ACTOR_VCPU || !hinted(c->vm, HINT_SERVED) ||
	    !(settings.directions & DIR_OUT))
		return 0;
	/* a pointer to const void: older kernels let no program read such an argument directly */
	if (bpf_get_func_arg(ctx, 4, &val))
		return 0;
	now = bpf_ktime_get_ns();
	d.vm = c->vm;
	d.id = doorbell_id(addr, len, written_value((const void *)val, len));
	r = bpf_map_lookup_elem(&rung_by, &d.vm);
	if (!r) {
		struct rings fresh = {};

		bpf_map_update_elem(&rung_by, &d.vm, &fresh, BPF_NOEXIST);
		r = bpf_map_lookup_elem(&rung_by, &d.vm);
		if (!r)
			return 0;
	}
	note_ring(r, d.id, now);
	found = bpf_map_lookup_elem(&doorbells, &d);
	if (!found)
		return 0;
	q = *found;
	s = bpf_map_lookup_elem(&served, &q);
	if (s && s->doorbell.known == d.id)
		emit_kick(c, now, &q);
	return 0;
}

#endif
