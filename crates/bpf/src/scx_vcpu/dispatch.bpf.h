/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a CPU runs next, and what it is charged for. */
#ifndef TEIJI_SCX_VCPU_DISPATCH_BPF_H
#define TEIJI_SCX_VCPU_DISPATCH_BPF_H

#include "turn.bpf.h"
#include "wake.bpf.h"

/* The best that was found. */
struct choice {
	u64 deadline; /* NO_DEADLINE: by weight */
	u64 vtime;
	u64 queue;
	u64 again; /* when a thread that waits without a budget may have one: the first such time; 0: never */
	u32 role;
	u32 slot;
	bool is_prev;
	bool found;
};

/* Whether (deadline, role, vtime) comes before what was found. */
static __always_inline bool is_better(const struct choice *best, u64 deadline, u32 role, u64 vtime)
{
	if (!best->found)
		return true;
	if (deadline != best->deadline) {
		if (deadline == NO_DEADLINE || best->deadline == NO_DEADLINE)
			return best->deadline == NO_DEADLINE;
		return is_before(deadline, best->deadline);
	}
	if (deadline != NO_DEADLINE)
		return role < best->role;
	return is_before(vtime, best->vtime);
}

/* Whether threads that go before others have had enough of this CPU for now. Nothing is owed to nobody. */
static __always_inline bool is_enough(u32 cpu, struct cpu_state *c)
{
	if (c->owed + MIN_SLICE / EDF_PER_OTHERS >= MAX_OWED) {
		if (c->weight || scx_bpf_dsq_nr_queued(cpu) > 0)
			c->others_turn = 1;
		else
			c->owed = 0;
	}
	if (!c->owed)
		c->others_turn = 0;
	return c->others_turn;
}

static __always_inline void consider(struct choice *best, u64 deadline, u32 role, u64 vtime, u64 queue,
				     u32 slot, bool is_prev)
{
	if (!is_better(best, deadline, role, vtime))
		return;
	best->found = true;
	best->deadline = deadline;
	best->role = role;
	best->vtime = vtime;
	best->queue = queue;
	best->slot = slot;
	best->is_prev = is_prev;
}

/* A thread of a real-time VM may run on a CPU. Others have to be found on it if it goes by weight. */
static __always_inline void consider_thread(struct choice *best, struct cpu_state *c, u32 slot, bool enough,
					    u64 now, bool is_prev)
{
	struct thread *thread = thread_at(slot);
	struct place place;

	if (!thread)
		return;
	place = place_of(thread, now);
	if (place.again && (!best->again || is_before(place.again, best->again)))
		best->again = place.again;
	if (enough && place.deadline != NO_DEADLINE)
		consider(best, NO_DEADLINE, 0, c->vnow + SLICE, THREAD_QUEUES + slot, slot + 1, is_prev);
	else
		consider(best, place.deadline, thread->role, thread->vtime, THREAD_QUEUES + slot, slot + 1,
			 is_prev);
}

/* Of all that waits in queues of real-time VMs' threads and may run on the CPU, those that run by weight on
 * others as well. */
#define OF_OTHERS 1
/* Threads that go before others have had their share of the CPU. */
#define ENOUGH 2

/* All that may run on a CPU and that waits in queues of real-time VMs' threads. Not static: see find_place.
 */
__noinline int consider_threads(struct choice *best, s32 cpu, u32 flags, u64 now)
{
	struct cpu_state *c = cpu_at(cpu);
	struct task_struct *p;
	struct thread *thread;
	int word, i;
	u64 bits;
	u32 slot;

	if (!best || !c)
		return 0;
	bpf_for(word, 0, MAX_THREADS / 64)
	{
		bits = runnable_threads[word];
		bpf_for(i, 0, 64)
		{
			if (!bits)
				break;
			slot = word * 64 + take_bit(&bits);
			thread = thread_at(slot);
			p = scx_bpf_dsq_peek(THREAD_QUEUES + slot);
			if (!thread || !p || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
				continue;
			if (thread->cpu != cpu && !(flags & OF_OTHERS) &&
			    place_of(thread, now).deadline == NO_DEADLINE)
				continue;
			consider_thread(best, c, slot, flags & ENOUGH, now, false);
		}
	}
	return 0;
}

/* Charges what runs for the time since it began, or since this was called last. */
static __always_inline void charge(struct task_struct *p, struct task *t, struct cpu_state *c, u64 now)
{
	u64 ran = now - c->started;
	struct thread *thread;
	struct vm_state *s;
	u32 vm;

	if ((s64)ran < 0)
		ran = 0;
	c->started = now;
	if (!t->before_others)
		c->owed -= least(c->owed, ran);
	if (!t->slot) {
		c->vtime += virtual(ran, weight_of(p));
		scx_bpf_task_set_dsq_vtime(p, c->vtime);
		return;
	}
	thread = thread_at(t->slot - 1);
	if (!thread)
		return;
	vm = thread->vm;
	s = bpf_map_lookup_elem(&states, &vm);
	if (!s)
		return;
	if (!t->before_others) {
		thread->vtime += virtual(ran, weight_of(p));
		c->vtime = thread->vtime;
		__sync_fetch_and_add(&s->fair_time, ran);
		return;
	}
	use(vm, s, t, ran, c->timer_late || (c->timer_at && is_before(c->timer_at + OVERRUN, now)));
	/* Not for what it took too long: a turn of others has a bound. */
	c->owed = least(c->owed + ran / EDF_PER_OTHERS, MAX_OWED);
	c->edf_time += ran;
}

/* From now on it runs, and is charged accordingly. Returns for how long it may, ns. */
static __always_inline u64 begin(struct task_struct *p, struct task *t, u32 cpu, struct cpu_state *c, u64 now)
{
	struct thread *thread = t->slot ? thread_at(t->slot - 1) : NULL;
	struct place place = {.deadline = NO_DEADLINE};
	u64 idle = now - c->started, most, again = c->again;
	bool enough;

	/* what nobody used */
	c->owed -= least(c->owed, (s64)idle > 0 ? idle : 0);
	c->started = now;
	c->slot = t->slot;
	c->weight = t->slot ? 0 : weight_of(p);
	t->before_others = t->asked = t->claimed = c->before_others = 0;
	enough = is_enough(cpu, c);
	if (thread) {
		place = place_of(thread, now);
		if (place.exhausted)
			count_used_up(thread->vm, now);
		if (place.again && (!again || is_before(place.again, again)))
			again = place.again;
	}
	/* A turn ends when a thread that waits may go before others again, with what deadline is seen then.
	 * It is no shorter than what is worth it, also if that time has come meanwhile. */
	if (again && is_before(again, now + MIN_SLICE))
		again = now + MIN_SLICE;
	if (thread && place.deadline != NO_DEADLINE && !enough) {
		t->before_others = c->before_others = 1;
		t->asked = place.asked;
		most = least((MAX_OWED - c->owed) * EDF_PER_OTHERS, EDF_SLICE);
		most = grant(thread->vm, t, &place, again ? least(most, again - now) : most);
		end_turn_at(cpu, c, now + most, now);
		return most;
	}
	if (is_before(c->vnow, c->vtime))
		c->vnow = c->vtime;
	c->until = 0;
	if (!c->others_turn) {
		if (again)
			end_turn_at(cpu, c, again, now);
		return slice_of(cpu);
	}
	/* until threads go before others again */
	end_turn_at(cpu, c, now + c->owed, now);
	return least(c->owed, slice_of(cpu));
}

/* What threads that go before others leave of a CPU is measured anew. */
static __always_inline void measure(struct cpu_state *c, u64 now)
{
	u64 passed = now - c->balanced;

	c->edf_share = (c->edf_share + least(c->edf_time * SHARE_ALL / passed, SHARE_ALL)) / 2;
	c->edf_time = 0;
	c->balanced = now;
}

/* Takes a thread of the CPU with the greatest load, if this one has much less. If its threads are bound to
 * it, those of others are looked at the next time. */
static __always_inline bool balance(s32 cpu, struct cpu_state *c, u64 now)
{
	u64 most = load_of(c) + 2 * DEFAULT_WEIGHT - 1, load;
	struct cpu_state *other;
	s32 found = -1;
	int i;

	bpf_for(i, 0, host.cpus)
	{
		other = cpu_at(i);
		load = other && now - other->kept >= KEPT_INTERVAL ? load_of(other) : 0;
		if (i != cpu && load > most && scx_bpf_dsq_nr_queued(i) > 0) {
			most = load;
			found = i;
		}
	}
	other = found >= 0 ? cpu_at(found) : NULL;
	if (!other)
		return false;
	if (move_to_local(found))
		return true;
	other->kept = now;
	return false;
}

/* What runs goes on. */
static __always_inline void keep(struct task_struct *prev, struct task *t, u32 cpu, struct cpu_state *c,
				 u64 now)
{
	if (prev)
		set_slice(prev, t ? begin(prev, t, cpu, c, now) : SLICE);
}

/* Takes what waits for other CPUs, as there is nothing else to do. Returns whether there was anything. */
static __always_inline bool take(s32 cpu, struct cpu_state *c, u64 now)
{
	struct choice best = {};
	struct cpu_state *other;
	u32 queue;
	int i;

	bpf_for(i, 1, host.cpus)
	{
		queue = (cpu + i) % host.cpus;
		other = cpu_at(queue);
		if (other && other->load && scx_bpf_dsq_nr_queued(queue) > 0 && move_to_local(queue))
			return true;
	}
	consider_threads(&best, cpu, OF_OTHERS, now);
	return best.found && move_to_local(best.queue);
}

SEC("struct_ops/dispatch")
void BPF_PROG(dispatch, s32 cpu, struct task_struct *prev)
{
	struct cpu_state *c = cpu_at(cpu);
	u64 now = bpf_ktime_get_ns();
	struct task_struct *first;
	struct task *t = NULL;
	bool enough, stays, due, missed = false;
	int i;

	if (!c)
		return;
	c->online = 1;
	stays = prev && prev->scx.flags & core_enum(scx_ent_flags, SCX_TASK_QUEUED);
	if (stays)
		t = task_of(prev);
	if (prev && t)
		charge(prev, t, c, now);
	enough = is_enough(cpu, c);
	due = now - c->balanced >= BALANCE_INTERVAL;
	if (due)
		measure(c, now);
	if (now - c->looked >= LOOK_INTERVAL)
		hasten(cpu, c, now);
	/* what is chosen may be taken by another CPU meanwhile */
	bpf_for(i, 0, 3)
	{
		struct choice best = {};

		consider_threads(&best, cpu, enough ? ENOUGH : 0, now);
		first = scx_bpf_dsq_peek(cpu);
		if (first)
			consider(&best, NO_DEADLINE, 0, first->scx.dsq_vtime, cpu, 0, false);
		if (t && t->slot)
			consider_thread(&best, c, t->slot - 1, enough, now, true);
		else if (stays)
			consider(&best, NO_DEADLINE, 0, c->vtime, 0, 0, true);
		c->again = best.again;
		if (!best.found)
			break;
		if (best.deadline == NO_DEADLINE && due) {
			due = false;
			if (balance(cpu, c, now))
				return;
		}
		if (best.is_prev) {
			keep(prev, t, cpu, c, now);
			return;
		}
		if (move_to_local(best.queue))
			return;
		missed = true;
	}
	if (move_to_local(cpu))
		return;
	if (stays)
		keep(prev, t, cpu, c, now);
	else if (!take(cpu, c, now) && missed)
		/* others were faster: there may be more */
		scx_bpf_kick_cpu(cpu, 0);
}

SEC("struct_ops/running")
void BPF_PROG(running, struct task_struct *p)
{
	u32 cpu = scx_bpf_task_cpu(p), n;
	u64 now = bpf_ktime_get_ns(), waited;
	struct task *t = task_of(p);
	struct cpu_state *c = cpu_at(cpu);
	struct thread *thread;

	if (!t || !c)
		return;
	thread = t->slot ? thread_at(t->slot - 1) : NULL;
	if (!thread) {
		c->vtime = belong(p, t, cpu, p->scx.dsq_vtime);
		set_slice(p, begin(p, t, cpu, c, now));
		return;
	}
	thread->vtime = belong(p, t, cpu, thread->vtime);
	thread->cpu = cpu;
	c->vtime = thread->vtime;
	if (thread->runnable_at) {
		waited = now - thread->runnable_at;
		n = waited ? 63 - __builtin_clzll(waited) : 0;
		__sync_fetch_and_add(&thread->latencies[n < LATENCIES ? n : LATENCIES - 1], 1);
		thread->runnable_at = 0;
	}
	set_slice(p, begin(p, t, cpu, c, now));
}

SEC("struct_ops/stopping")
void BPF_PROG(stopping, struct task_struct *p, bool runnable)
{
	struct cpu_state *c = cpu_at(scx_bpf_task_cpu(p));
	struct task *t = task_of(p);
	u64 now = bpf_ktime_get_ns(), granted;
	struct thread *thread;
	s64 back;

	if (!t || !c)
		return;
	granted = t->before_others ? t->granted : 0;
	back = granted - (now - c->started);
	charge(p, t, c, now);
	c->slot = c->weight = c->until = c->before_others = 0;
	/* One that is preempted by a thread of SCHED_FIFO is queued: with a slice left it would go on before
	 * a deadline. */
	if (runnable)
		scx_bpf_task_set_slice(p, 0);
	thread = t->slot ? thread_at(t->slot - 1) : NULL;
	if (!thread)
		return;
	/* What it gives back may be what others of its VM wait for; and a packet may have come while the
	 * worker was awake. */
	if ((granted && back >= (s64)MIN_SLICE) ||
	    (thread->role == VHOST_WORKER && place_of(thread, now).packet))
		tell_threads(thread->vm, t->slot - 1, now);
}

#endif
