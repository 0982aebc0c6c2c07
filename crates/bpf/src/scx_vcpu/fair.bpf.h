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

/* A task that slept is at most a slice behind, one of little weight is not too far ahead. */
static __always_inline u64 limited(u64 vtime, u64 vnow)
{
	if (is_before(vtime, vnow - SLICE))
		return vnow - SLICE;
	return is_before(vnow + MAX_AHEAD, vtime) ? vnow + MAX_AHEAD : vtime;
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
	return limited(vtime, to->vnow);
}

#endif
