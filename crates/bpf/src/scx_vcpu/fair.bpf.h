/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The fair queues: virtual times, and the loads of CPUs. */
#ifndef TEIJI_SCX_VCPU_FAIR_BPF_H
#define TEIJI_SCX_VCPU_FAIR_BPF_H

#include "maps.bpf.h"

static __always_inline u64 weight_of(struct task_struct *p)
{
	u32 weight = p->scx.weight;

	return weight ? least(weight, MAX_WEIGHT) : 1;
}

static __always_inline u64 virtual(u64 ns, u64 weight)
{
	return ns * DEFAULT_WEIGHT / weight;
}

/* Which of a CPU's loads a task is part of. */
static __always_inline u64 *sum_of(struct task *t, struct cpu_state *c)
{
	return t->slot ? &c->vm_load : &c->load;
}

/* A task is runnable on its CPU. */
static __always_inline void add_load(struct task_struct *p, struct task *t)
{
	struct cpu_state *c = t->load ? NULL : cpu_at(t->cpu);

	if (!c)
		return;
	t->load = weight_of(p);
	__sync_fetch_and_add(sum_of(t, c), t->load);
}

/* It no longer is. */
static __always_inline void remove_load(struct task *t)
{
	struct cpu_state *c = t->load ? cpu_at(t->cpu) : NULL;

	if (c)
		__sync_fetch_and_sub(sum_of(t, c), t->load);
	t->load = 0;
}

/* A task that slept is at most a slice behind. */
static __always_inline u64 limited(u64 vtime, const struct cpu_state *c)
{
	return is_before(vtime, c->vnow - SLICE) ? c->vnow - SLICE : vtime;
}

/* Threads that wait for too long go first. By weight alone, one of nice 19 would wait for minutes if many of
 * nice -20 came, and the kernel would end the scheduler. */
static __always_inline void hasten(u32 cpu, struct cpu_state *c, u64 now)
{
	struct task_struct *p;
	struct task *t;

	c->looked = now;
	bpf_for_each(scx_dsq, p, cpu, 0)
	{
		t = task_of(p);
		if (!t || is_before(now, t->queued_at + MAX_WAIT))
			continue;
		t->queued_at = now;
		scx_bpf_dsq_move_set_vtime(&___it, c->vnow - SLICE);
		scx_bpf_dsq_move_vtime(&___it, p, cpu, 0);
	}
}

/* For how long a thread may run on a CPU, ns: everybody's turn is to come soon. */
static __always_inline u64 slice_of(u32 cpu)
{
	s32 queued = scx_bpf_dsq_nr_queued(cpu);
	u64 slice;

	if (queued <= SLICES)
		return SLICE;
	slice = SLICE * SLICES / queued;
	return slice > SHORT_SLICE ? slice : SHORT_SLICE;
}

/* The load of a CPU as far as it can be compared: with what VMs' threads leave of it. */
static __always_inline u64 load_of(const struct cpu_state *c)
{
	return c->load * SHARE_ALL / (SHARE_ALL + SHARE_ALL / 16 - least(c->edf_share, SHARE_ALL));
}

/*
 * The task belongs to this CPU from now on, if it does not yet. Returns its virtual time there: what it is
 * ahead or behind by is the same on each CPU. One that never ran comes after a slice of its own, or a chain
 * of tasks that each start the next one and end would keep the CPU.
 */
static __always_inline u64 belong(struct task_struct *p, struct task *t, u32 cpu, u64 vtime)
{
	struct cpu_state *from = cpu_at(t->cpu), *to = cpu_at(cpu);
	bool runnable = t->load;

	if (!from || !to)
		return vtime;
	if (t->fresh)
		vtime = from->vnow + virtual(SLICE, weight_of(p));
	t->fresh = 0;
	if (t->cpu != cpu) {
		remove_load(t);
		t->cpu = cpu;
		if (runnable)
			add_load(p, t);
		vtime += to->vnow - from->vnow;
	}
	return limited(vtime, to);
}

#endif
