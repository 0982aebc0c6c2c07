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

/* The load of a CPU no longer contains the task. */
static __always_inline void unload(struct task *t)
{
	struct cpu_state *c = t->load ? cpu_at(t->cpu) : NULL;

	if (c)
		__sync_fetch_and_sub(&c->load, t->load);
	t->load = 0;
}

/* A task that slept is at most a slice behind; one of little weight is not too far ahead: virtual time passes
 * the more slowly the greater the load is. */
static __always_inline u64 limited(u64 vtime, const struct cpu_state *c)
{
	u64 load = c->load, ahead = virtual(MAX_WAIT, load > DEFAULT_WEIGHT ? load : DEFAULT_WEIGHT);

	if (is_before(vtime, c->vnow - SLICE))
		return c->vnow - SLICE;
	return is_before(c->vnow + ahead, vtime) ? c->vnow + ahead : vtime;
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
 * ahead or behind by is the same on each CPU. One that never ran begins now.
 */
static __always_inline u64 belong(struct task_struct *p, struct task *t, u32 cpu, u64 vtime)
{
	struct cpu_state *from = cpu_at(t->cpu), *to = cpu_at(cpu);
	bool runnable = t->load;

	if (!from || !to)
		return vtime;
	if (t->fresh)
		vtime = from->vnow;
	t->fresh = 0;
	if (t->cpu != cpu) {
		unload(t);
		t->cpu = cpu;
		if (runnable) {
			t->load = weight_of(p);
			__sync_fetch_and_add(&to->load, t->load);
		}
		vtime += to->vnow - from->vnow;
	}
	return limited(vtime, to);
}

#endif
