/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * When threads that read packets were woken, by whom, and when they then got a CPU.
 */
#ifndef TEIJI_GUEST_THREADS_BPF_H
#define TEIJI_GUEST_THREADS_BPF_H

/* Bits of the preemption count: a softirq, an interrupt or an NMI is being handled. */
#define INTERRUPTED (1 << 8 | 0xf << 16 | 0xf << 20)

static __always_inline u32 current_tid(void)
{
	return bpf_get_current_pid_tgid();
}

enum context { THREAD, INTERRUPT, UNKNOWN };

/* Whether this is done by the current thread, or in an interrupt of it. */
static __always_inline enum context context(void)
{
	u64 offset = 0, at = symbols.preempt_count;
	u32 cpu = bpf_get_smp_processor_id();
	int n = 0;

	if (symbols.pcpu_hot && bpf_core_field_exists(struct pcpu_hot, preempt_count))
		at = symbols.pcpu_hot + bpf_core_field_offset(struct pcpu_hot, preempt_count);
	if (!at || !symbols.per_cpu_offset)
		return UNKNOWN;
	if (bpf_probe_read_kernel(&offset, 8, (void *)(symbols.per_cpu_offset + 8 * (u64)cpu)) ||
	    bpf_probe_read_kernel(&n, 4, (void *)(at + offset)))
		return UNKNOWN;
	return n & INTERRUPTED ? INTERRUPT : THREAD;
}

/* Whether the current thread sends. Packets are sent by threads and in softirqs, which have tracepoints. */
static __always_inline bool thread_sends(void)
{
	enum context now = context();
	struct cpu *c = this_cpu();

	return now == UNKNOWN ? c && !c->softirq : now == THREAD;
}

static __always_inline void mark(u32 tid)
{
	marks[tid % MARKS] = 1;
}

/* What is kept of a thread. */
static __always_inline struct thread *thread_of(u32 tid)
{
	struct thread *t = bpf_map_lookup_elem(&threads, &tid), fresh = {};

	if (t)
		return t;
	bpf_map_update_elem(&threads, &tid, &fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(&threads, &tid);
}

/* A thread is woken on this CPU: maybe by the packet that is being put on a socket's queue here. */
static __always_inline void woken(u32 tid)
{
	struct cpu *c = this_cpu();
	bool by_packet = c && c->enqueues;
	u32 by = current_tid();
	struct thread *t;

	if (!by_packet && !marks[tid % MARKS])
		return;
	if (tid == by && !by_packet) /* it is about to sleep, and does not */
		return;
	t = thread_of(tid);
	if (!t)
		return;
	if (by_packet)
		mark(tid);
	t->last.since = t->slept;
	t->last.woken = bpf_ktime_get_ns();
	t->last.running = 0;
	t->last.woken_by = !by_packet && context() == THREAD ? by : 0;
	if (by_packet)
		t->for_packet = t->last;
}

/* A thread leaves its CPU to sleep. */
static __always_inline void sleeps(u32 tid)
{
	struct thread *t = marks[tid % MARKS] ? bpf_map_lookup_elem(&threads, &tid) : NULL;

	if (t)
		t->slept = bpf_ktime_get_ns();
}

static __always_inline void got_cpu(u32 tid)
{
	struct thread *t;

	if (!marks[tid % MARKS])
		return;
	t = bpf_map_lookup_elem(&threads, &tid);
	if (!t)
		return;
	if (t->last.woken && !t->last.running)
		t->last.running = bpf_ktime_get_ns();
	if (t->for_packet.woken && !t->for_packet.running)
		t->for_packet.running = t->last.running;
}

/* Whether a thread slept from `at` on until it was woken then, and has run since. */
static __always_inline bool slept_through(const struct sleep *s, u64 at)
{
	return s->since <= at && s->woken >= at && s->running >= s->woken;
}

#endif
