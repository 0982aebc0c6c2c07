/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which CPU a thread that becomes runnable is queued for, and which one is told of it. */
#ifndef TEIJI_SCX_VCPU_WAKE_BPF_H
#define TEIJI_SCX_VCPU_WAKE_BPF_H

#include "deadline.bpf.h"
#include "fair.bpf.h"

/* Also between two threads. */
static __always_inline bool is_idle(struct cpu_state *c)
{
	return !c->slot && !c->weight;
}

/* Whether a thread that goes before others has to wait for what runs on the CPU. */
static __always_inline bool waits_for(struct cpu_state *c, u64 deadline, u32 role, u64 now)
{
	struct thread *running;
	u32 slot = c->slot;
	struct place place;

	/* one that runs by weight gives way, whatever it could get now */
	if (!slot || !c->before_others)
		return false;
	running = thread_at(slot - 1);
	if (!running)
		return false;
	place = place_of(running, now);
	if (place.deadline == NO_DEADLINE)
		return false;
	return place.deadline == deadline ? running->role <= role : is_before(place.deadline, deadline);
}

/* A CPU on which the thread may run and none of a real-time VM does: the one that is `first` after `cpu`, or
 * one after that; `cpu` if there is none. */
static __always_inline s32 without_thread(struct task_struct *p, s32 cpu, int first)
{
	struct cpu_state *c;
	s32 other;
	int i;

	bpf_for(i, first, host.cpus)
	{
		other = (cpu + i) % host.cpus;
		if (!bpf_cpumask_test_cpu(other, p->cpus_ptr))
			continue;
		c = cpu_at(other);
		if (c && c->online && !c->slot)
			return other;
	}
	return cpu;
}

/* Nothing is put on a CPU past its queues: `dispatch` is not called while something is, however early a
 * deadline. So a thread that wakes another one and sleeps leaves the CPU to the queues, too (no
 * SCX_WAKE_SYNC).
 */
SEC("struct_ops/select_cpu")
s32 BPF_PROG(select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	u64 sync = core_enum(scx_wake_flags, SCX_WAKE_SYNC);
	struct task *t = task_of(p);
	bool is_idle = false;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags & ~sync, &is_idle);

	if (t)
		t->claimed = is_idle;
	if (is_idle)
		return cpu;
	return t && t->slot && p->nr_cpus_allowed > 1 ? without_thread(p, prev_cpu, 0) : prev_cpu;
}

/* A thread of a real-time VM is to run on a CPU. Returns whether what runs there has to make room for it. */
static __always_inline bool tell(u32 cpu, const struct place *place, u32 role, u64 now)
{
	struct cpu_state *c = cpu_at(cpu);
	u64 deadline = place->deadline;

	if (!c)
		return false;
	/* What runs has to stop as soon as the thread may have a budget again: `begin` sees to that. (By
	 * weight the thread may come first now.) */
	if (place->again && !is_idle(c) && !c->others_turn &&
	    (!c->until || is_before(place->again, c->until))) {
		scx_bpf_kick_cpu(cpu, core_enum(scx_kick_flags, SCX_KICK_PREEMPT));
		return true;
	}
	if (deadline != NO_DEADLINE && !is_idle(c) && !c->others_turn && !waits_for(c, deadline, role, now)) {
		scx_bpf_kick_cpu(cpu, core_enum(scx_kick_flags, SCX_KICK_PREEMPT));
		return true;
	}
	if (is_idle(c))
		scx_bpf_kick_cpu(cpu, core_enum(scx_kick_flags, SCX_KICK_IDLE));
	return false;
}

#define NO_SLOT MAX_THREADS

/* CPUs for which threads of the VM wait are told, as these may go before others now. But for one thread's, by
 * its slot. Not static: see find_place. */
__noinline int tell_threads(u32 vm, u32 but, u64 now)
{
	struct thread *thread;
	int word, i;
	struct place place;
	u64 bits;
	u32 slot;

	bpf_for(word, 0, MAX_THREADS / 64)
	{
		bits = runnable_threads[word];
		bpf_for(i, 0, 64)
		{
			if (!bits)
				break;
			slot = word * 64 + take_bit(&bits);
			thread = slot == but ? NULL : thread_at(slot);
			if (!thread || thread->vm != vm || !scx_bpf_dsq_nr_queued(THREAD_QUEUES + slot))
				continue;
			place = place_of(thread, now);
			tell(thread->cpu, &place, thread->role, now);
		}
	}
	return 0;
}

/* A CPU is told that a thread is in a queue. Returns whether one can take it at once. `flags`: of `enqueue`.
 */
static __always_inline bool found_idle(struct task_struct *p, struct task *t, u32 cpu, struct cpu_state *c,
				       u64 flags)
{
	bool claimed = t->claimed;
	s32 idle;

	t->claimed = 0;
	/* Nothing else is to run on the CPU: it asks for a thread once more. */
	if (flags & core_enum(scx_enq_flags, SCX_ENQ_LAST)) {
		scx_bpf_kick_cpu(cpu, 0);
		return true;
	}
	if (is_idle(c))
		scx_bpf_kick_cpu(cpu, core_enum(scx_kick_flags, SCX_KICK_IDLE));
	if (claimed)
		return true;
	/* Any other idle CPU. Without this, a thread that shares its CPU with one that is bound to it would
	 * stay. */
	idle = p->nr_cpus_allowed == 1 ? -1 : scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	if (idle < 0)
		return false;
	scx_bpf_kick_cpu(idle, core_enum(scx_kick_flags, SCX_KICK_IDLE));
	return true;
}

static __always_inline void enqueue_thread(struct task_struct *p, struct task *t, u64 enq_flags)
{
	u32 slot = t->slot - 1, cpu = scx_bpf_task_cpu(p), elsewhere;
	struct thread *thread = thread_at(slot);
	u64 now = bpf_ktime_get_ns();
	struct cpu_state *c = cpu_at(cpu);
	struct place place;

	if (!thread || !c)
		return;
	mark(slot);
	place = place_of(thread, now);
	thread->vtime = belong(p, t, cpu, thread->vtime);
	thread->cpu = cpu;
	/* `running` gives it its slice */
	insert(p, THREAD_QUEUES + slot, SLICE, 0, enq_flags);
	/* One that another thread has displaced is queued between the two: its CPU is not told again. */
	if (!found_idle(p, t, cpu, c, enq_flags) && !tell(cpu, &place, thread->role, now) &&
	    place.deadline != NO_DEADLINE && p->nr_cpus_allowed > 1) {
		elsewhere = without_thread(p, cpu, 1);
		if (elsewhere != cpu)
			tell(elsewhere, &place, thread->role, now);
	}
	if (thread->role == VHOST_WORKER && place.packet)
		tell_threads(thread->vm, slot, now);
}

SEC("struct_ops/enqueue")
void BPF_PROG(enqueue, struct task_struct *p, u64 enq_flags)
{
	u64 now = bpf_ktime_get_ns(), vtime, ahead;
	struct task *t = task_of(p);
	u32 cpu = scx_bpf_task_cpu(p);
	struct cpu_state *c = cpu_at(cpu);

	if (!t || !c) {
		insert(p, cpu, SLICE, p->scx.dsq_vtime, enq_flags);
		scx_bpf_kick_cpu(cpu, core_enum(scx_kick_flags, SCX_KICK_IDLE));
		return;
	}
	if (t->slot) {
		enqueue_thread(p, t, enq_flags);
		return;
	}
	vtime = belong(p, t, cpu, p->scx.dsq_vtime);
	t->queued_at = now;
	insert(p, cpu, SLICE, vtime, enq_flags);
	if (found_idle(p, t, cpu, c, enq_flags) || is_idle(c) || c->slot)
		return;
	ahead = c->vtime + virtual(now - c->started, c->weight ?: DEFAULT_WEIGHT);
	if (is_before(vtime + WAKE_GRANULARITY, ahead))
		scx_bpf_kick_cpu(cpu, core_enum(scx_kick_flags, SCX_KICK_PREEMPT));
}

#endif
