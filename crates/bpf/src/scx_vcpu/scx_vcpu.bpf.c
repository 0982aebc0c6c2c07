// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A scheduler for hosts of real-time VMs (sched_ext), after the double run queue of RTvNIC: the threads of
 * real-time VMs (vCPUs and vhost workers) go by earliest deadline first, everything else by weight.
 *
 *   packet for a VM ──► arrived ──► pending until the VM answers, sleeps, or its packet expires
 *                                      │ deadline: arrival + the VM's
 *   thread of a real-time VM ──► queue of its own ──┐
 *                                                   ├──► dispatch: 1. earliest deadline, within the budget
 *   any other thread ──► fair queue of its CPU ─────┘              2. least virtual time
 *
 * Deadlines. A VM for which a packet is pending has the deadline of the oldest one. Without one it has the
 * end of its period, so that a VM that sends is not kept waiting. Nothing is moved between queues when a
 * deadline changes: each thread of a real-time VM has a queue of its own, and `dispatch` compares.
 *
 * Budget. In each period a VM goes before others for at most its budget, half of it without a pending packet:
 * so a guest with one vCPU that never sleeps has half of it left when a packet comes. (Time is charged when a
 * thread stops: several busy vCPUs may use up all of it.) Beyond its budget its threads have the share of
 * ordinary threads. On each CPU, threads that go before others get at most EDF_SHARE of each EDF_WINDOW; at
 * the border of two windows that may be twice as long at a time. See LIMITATIONS for known faults.
 *
 * The fair queues. Each CPU has one, in the order of virtual time: CPU time divided by weight. A thread that
 * slept gets no credit beyond one slice. An idle CPU takes threads of others; every BALANCE_INTERVAL a CPU
 * takes one of the CPU with the greatest load, if that leaves it with no more load than the other has then.
 *
 * Assumed: cgroups' weights and `cpu.max` are not considered. One packet of the VM answers the oldest packet
 * that is pending, whatever it contains.
 *
 * When the process that loaded this ends, or a thread does not run for TIMEOUT_MS, or a CPU is added or
 * removed, the kernel returns to its own scheduler.
 */
#include "kernel.h"
#include "intf.h"
#include "maps.bpf.h"
#include "deadline.bpf.h"
#include "fair.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

static __always_inline bool insert(struct task_struct *p, u64 queue, u64 slice, u64 vtime, u64 enq_flags)
{
	struct scx_bpf_dsq_insert_vtime_args args = {
	    .dsq_id = queue,
	    .slice = slice,
	    .vtime = vtime,
	    .enq_flags = enq_flags,
	};

	return __scx_bpf_dsq_insert_vtime(p, &args);
}

static __always_inline bool move_to_local(u64 queue)
{
	return bpf_ksym_exists(scx_bpf_dsq_move_to_local___v2___kernel)
		   ? scx_bpf_dsq_move_to_local___v2___kernel(queue, 0)
		   : scx_bpf_dsq_move_to_local___v1(queue);
}

static __always_inline void set_slice(struct task_struct *p, u64 slice)
{
	scx_bpf_task_set_slice(p, slice < MIN_SLICE ? MIN_SLICE : slice);
}

/* ---- which CPU ---- */

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

	if (!slot)
		return false;
	running = thread_at(slot - 1);
	if (!running)
		return false;
	place = place_of(running->vm, now);
	if (place.deadline == NO_DEADLINE)
		return false;
	return place.deadline == deadline ? running->role <= role : is_before(place.deadline, deadline);
}

/* A CPU on which the thread may run and none of a real-time VM does; `cpu` if there is none. */
static __always_inline s32 without_thread(struct task_struct *p, s32 cpu)
{
	struct cpu_state *c;
	s32 other;
	int i;

	bpf_for(i, 0, host.cpus)
	{
		other = (cpu + i) % host.cpus;
		if (!bpf_cpumask_test_cpu(other, p->cpus_ptr))
			continue;
		c = cpu_at(other);
		if (c && !c->slot)
			return other;
	}
	return cpu;
}

SEC("struct_ops/select_cpu")
s32 BPF_PROG(select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct task *t = task_of(p);
	bool is_idle = false;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &is_idle);

	if (is_idle) {
		/* it goes at once, and to no queue */
		if (t && !t->slot)
			scx_bpf_dsq_insert___v2___kernel(p, core_enum(scx_dsq_id_flags, SCX_DSQ_LOCAL), SLICE,
							 0);
		return cpu;
	}
	return t && t->slot && p->nr_cpus_allowed > 1 ? without_thread(p, prev_cpu) : prev_cpu;
}

/* A thread of a real-time VM is to run on a CPU: the CPU is told if what runs there comes later. */
static __always_inline bool tell(u32 cpu, u64 deadline, u32 role, u64 now)
{
	struct cpu_state *c = cpu_at(cpu);

	if (!c)
		return false;
	if (deadline != NO_DEADLINE && !waits_for(c, deadline, role, now)) {
		scx_bpf_kick_cpu(cpu, core_enum(scx_kick_flags, SCX_KICK_PREEMPT));
		return true;
	}
	if (!is_idle(c))
		return false;
	scx_bpf_kick_cpu(cpu, core_enum(scx_kick_flags, SCX_KICK_IDLE));
	return true;
}

/* Where other threads of the VM wait: they go before others as well, as a packet is pending. */
static __always_inline void tell_others(u32 slot, u32 vm, u64 deadline, u64 now)
{
	struct thread *other;
	int word, bit;
	u64 bits;

	bpf_for(word, 0, MAX_THREADS / 64)
	{
		bits = runnable_threads[word];
		if (!bits)
			continue;
		bpf_for(bit, 0, 64)
		{
			if (!(bits >> bit & 1) || word * 64 + bit == slot)
				continue;
			other = thread_at(word * 64 + bit);
			if (other && other->vm == vm &&
			    scx_bpf_dsq_nr_queued(THREAD_QUEUES + word * 64 + bit) > 0)
				tell(other->cpu, deadline, other->role, now);
		}
	}
}

static __always_inline void enqueue_thread(struct task_struct *p, struct task *t, u64 enq_flags)
{
	u32 slot = t->slot - 1, cpu = scx_bpf_task_cpu(p), elsewhere;
	struct thread *thread = thread_at(slot);
	u64 now = bpf_ktime_get_ns();
	struct cpu_state *c = cpu_at(cpu);
	struct place place;
	s32 idle;

	if (!thread || !c)
		return;
	mark(slot);
	place = place_of(thread->vm, now);
	thread->vtime = belong(p, t, cpu, thread->vtime);
	thread->cpu = cpu;
	/* `running` gives it its slice */
	insert(p, THREAD_QUEUES + slot, SLICE, 0, enq_flags);
	/* another CPU may be idle */
	idle = p->nr_cpus_allowed == 1 || is_idle(c) ? -1 : scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	if (idle >= 0) {
		scx_bpf_kick_cpu(idle, core_enum(scx_kick_flags, SCX_KICK_IDLE));
	} else if (!tell(cpu, place.deadline, thread->role, now) && place.deadline != NO_DEADLINE &&
		   p->nr_cpus_allowed > 1) {
		elsewhere = without_thread(p, cpu);
		if (elsewhere != cpu)
			tell(elsewhere, place.deadline, thread->role, now);
	}
	if (thread->role == VHOST_WORKER && place.packet)
		tell_others(slot, thread->vm, place.deadline, now);
}

SEC("struct_ops/enqueue")
void BPF_PROG(enqueue, struct task_struct *p, u64 enq_flags)
{
	u64 now = bpf_ktime_get_ns(), vtime, ahead;
	struct task *t = task_of(p);
	u32 cpu = scx_bpf_task_cpu(p);
	struct cpu_state *c;
	s32 idle;

	if (t && t->slot) {
		enqueue_thread(p, t, enq_flags);
		return;
	}
	c = cpu_at(cpu);
	if (!t || !c) {
		insert(p, cpu, SLICE, p->scx.dsq_vtime, enq_flags);
		return;
	}
	vtime = belong(p, t, cpu, p->scx.dsq_vtime);
	insert(p, cpu, SLICE, vtime, enq_flags);
	if (is_idle(c))
		scx_bpf_kick_cpu(cpu, core_enum(scx_kick_flags, SCX_KICK_IDLE));
	/* An idle CPU takes it. Without this, a thread that shares its CPU with one that is bound to it would
	 * stay. */
	idle = p->nr_cpus_allowed == 1 ? -1 : scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	if (idle >= 0) {
		scx_bpf_kick_cpu(idle, core_enum(scx_kick_flags, SCX_KICK_IDLE));
	} else if (!is_idle(c) && !c->slot) {
		ahead = c->vtime + virtual(now - c->started, c->weight ?: DEFAULT_WEIGHT);
		if (is_before(vtime + WAKE_GRANULARITY, ahead))
			scx_bpf_kick_cpu(cpu, core_enum(scx_kick_flags, SCX_KICK_PREEMPT));
	}
}

/* ---- what runs next ---- */

/* The best that was found. */
struct choice {
	u64 deadline; /* NO_DEADLINE: by weight */
	u64 vtime;
	u64 queue;
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

/* Whether threads that go before others have had their share of this CPU for now. */
static __always_inline bool is_enough(struct cpu_state *c, u64 now)
{
	u64 windows = (now - c->edf_since) / EDF_WINDOW;

	/* what was beyond the share is taken off the next one */
	c->edf_since += windows * EDF_WINDOW;
	c->edf_time -= least(c->edf_time, windows * EDF_SHARE);
	return c->edf_time >= EDF_SHARE;
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
	place = place_of(thread->vm, now);
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
	int word, bit;
	u64 bits;
	u32 slot;

	if (!best || !c)
		return 0;
	bpf_for(word, 0, MAX_THREADS / 64)
	{
		bits = runnable_threads[word];
		if (!bits)
			continue;
		bpf_for(bit, 0, 64)
		{
			if (!(bits >> bit & 1))
				continue;
			slot = word * 64 + bit;
			thread = thread_at(slot);
			p = scx_bpf_dsq_peek(THREAD_QUEUES + slot);
			if (!thread || !p || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
				continue;
			if (thread->cpu != cpu && !(flags & OF_OTHERS) &&
			    place_of(thread->vm, now).deadline == NO_DEADLINE)
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
	__sync_fetch_and_add(&s->used, ran);
	__sync_fetch_and_add(&s->edf_time, ran);
	if (!t->packet)
		__sync_fetch_and_add(&s->unasked, ran);
	c->edf_time += ran;
}

/* From now on it runs, and is charged accordingly. Returns for how long it may, ns. */
static __always_inline u64 begin(struct task_struct *p, struct task *t, struct cpu_state *c, u64 now)
{
	struct thread *thread = t->slot ? thread_at(t->slot - 1) : NULL;
	struct place place;

	c->started = now;
	c->slot = t->slot;
	c->weight = t->slot ? 0 : weight_of(p);
	t->before_others = t->packet = 0;
	if (thread) {
		place = place_of(thread->vm, now);
		if (place.deadline != NO_DEADLINE && !is_enough(c, now)) {
			t->before_others = 1;
			t->packet = place.packet;
			return least(least(place.left, EDF_SLICE), EDF_SHARE - c->edf_time);
		}
	}
	if (is_before(c->vnow, c->vtime))
		c->vnow = c->vtime;
	return SLICE;
}

/* Takes a thread of the CPU with the greatest load, if this one has much less. */
static __always_inline bool balance(s32 cpu, struct cpu_state *c)
{
	u64 load = c->load, most = load + 2 * DEFAULT_WEIGHT - 1;
	struct cpu_state *other;
	s32 found = -1;
	int i;

	bpf_for(i, 0, host.cpus)
	{
		other = cpu_at(i);
		if (i != cpu && other && other->load > most && scx_bpf_dsq_nr_queued(i) > 0) {
			most = other->load;
			found = i;
		}
	}
	return found >= 0 && move_to_local(found);
}

/* What runs goes on. */
static __always_inline void keep(struct task_struct *prev, struct task *t, struct cpu_state *c, u64 now)
{
	if (prev)
		set_slice(prev, t ? begin(prev, t, c, now) : SLICE);
}

/* Takes what waits for other CPUs, as there is nothing else to do. */
static __always_inline void take(s32 cpu, struct cpu_state *c, u64 now)
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
			return;
	}
	consider_threads(&best, cpu, OF_OTHERS, now);
	if (best.found)
		move_to_local(best.queue);
}

SEC("struct_ops/dispatch")
void BPF_PROG(dispatch, s32 cpu, struct task_struct *prev)
{
	struct cpu_state *c = cpu_at(cpu);
	u64 now = bpf_ktime_get_ns();
	struct task_struct *first;
	struct task *t = NULL;
	bool enough, stays;
	int i;

	if (!c)
		return;
	stays = prev && prev->scx.flags & core_enum(scx_ent_flags, SCX_TASK_QUEUED);
	if (stays)
		t = task_of(prev);
	if (prev && t)
		charge(prev, t, c, now);
	enough = is_enough(c, now);
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
		if (!best.found)
			break;
		if (best.deadline == NO_DEADLINE && now - c->balanced >= BALANCE_INTERVAL) {
			c->balanced = now;
			if (balance(cpu, c))
				return;
		}
		if (best.is_prev) {
			keep(prev, t, c, now);
			return;
		}
		if (move_to_local(best.queue))
			return;
	}
	if (move_to_local(cpu))
		return;
	if (stays)
		keep(prev, t, c, now);
	else
		take(cpu, c, now);
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
		begin(p, t, c, now);
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
	set_slice(p, begin(p, t, c, now));
}

SEC("struct_ops/stopping")
void BPF_PROG(stopping, struct task_struct *p, bool runnable)
{
	struct cpu_state *c = cpu_at(scx_bpf_task_cpu(p));
	struct task *t = task_of(p);
	u64 now = bpf_ktime_get_ns();
	struct thread *thread;
	struct place place;

	if (!t || !c)
		return;
	charge(p, t, c, now);
	c->slot = c->weight = 0;
	/* One that is preempted by a thread of SCHED_FIFO is queued: with a slice left it would go on before
	 * a deadline. */
	if (runnable)
		scx_bpf_task_set_slice(p, 0);
	thread = t->slot ? thread_at(t->slot - 1) : NULL;
	if (!thread || thread->role != VHOST_WORKER)
		return;
	/* a packet may have come while the worker was awake */
	place = place_of(thread->vm, now);
	if (place.packet)
		tell_others(t->slot - 1, thread->vm, place.deadline, now);
}

/* ---- tasks ---- */

/* A thread of a real-time VM is awake from now on, or asleep. */
static __always_inline void wake(struct thread *thread, bool awake)
{
	struct vm_state *s;
	u32 vm = thread->vm;

	s = bpf_map_lookup_elem(&states, &vm);
	if (!s || __sync_val_compare_and_swap(&thread->awake, !awake, awake) == awake)
		return;
	if (awake)
		__sync_fetch_and_add(&s->awake, 1);
	else if (__sync_fetch_and_add(&s->awake, -1) == 1)
		all_done(s, bpf_ktime_get_ns());
}

SEC("struct_ops/runnable")
void BPF_PROG(runnable, struct task_struct *p, u64 enq_flags)
{
	struct task *t = task_of(p);
	struct cpu_state *c;
	struct thread *thread;

	if (!t)
		return;
	if (t->slot) {
		thread = thread_at(t->slot - 1);
		if (!thread)
			return;
		mark(t->slot - 1);
		thread->runnable_at = bpf_ktime_get_ns();
		wake(thread, true);
		return;
	}
	c = cpu_at(t->cpu);
	if (!c || t->load)
		return;
	t->load = weight_of(p);
	__sync_fetch_and_add(&c->load, t->load);
}

SEC("struct_ops/quiescent")
void BPF_PROG(quiescent, struct task_struct *p, u64 deq_flags)
{
	struct task *t = task_of(p);
	struct thread *thread;

	if (!t)
		return;
	unload(t);
	thread = t->slot ? thread_at(t->slot - 1) : NULL;
	if (!thread)
		return;
	unmark(t->slot - 1);
	thread->runnable_at = 0;
	if (deq_flags & core_enum(scx_deq_flags, SCX_DEQ_SLEEP))
		wake(thread, false);
}

SEC("struct_ops.s/init_task")
s32 BPF_PROG(init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task *t = bpf_task_storage_get(&tasks, p, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!t)
		return -ENOMEM;
	t->cpu = scx_bpf_task_cpu(p);
	t->fresh = 1;
	return 0;
}

SEC("struct_ops/exit_task")
void BPF_PROG(exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
	struct task *t = task_of(p);
	struct thread *thread = t && t->slot ? thread_at(t->slot - 1) : NULL;

	if (!thread)
		return;
	wake(thread, false);
	unmark(t->slot - 1);
	t->slot = 0;
	thread->pid = 0;
}

#define CLOCK_TICK 10000000ULL /* ns, of /proc/PID/stat */

/* Makes a thread one of a real-time VM, until it ends. Returns 0, or a negative error. */
SEC("syscall")
int assign(struct assignment *a)
{
	struct task_struct *p = bpf_task_from_pid(a->pid);
	struct thread *thread;
	struct task *t;
	int done = -ESRCH;

	if (!p)
		return done;
	t = task_of(p);
	if (!t || p->start_boottime / CLOCK_TICK != a->start_tick)
		goto out;
	done = -EINVAL;
	if (a->vm >= MAX_VMS)
		goto out;
	thread = t->slot ? thread_at(t->slot - 1) : NULL;
	if (thread) {
		/* its VM's count of threads that are awake contains it */
		done = thread->vm == a->vm && thread->role == a->role ? 0 : -EEXIST;
		goto out;
	}
	done = -ENOSPC;
	thread = thread_at(a->slot);
	if (!thread || thread->pid)
		goto out;
	__builtin_memset(thread, 0, sizeof(*thread));
	thread->pid = a->pid;
	thread->vm = a->vm;
	thread->role = a->role;
	thread->cpu = t->cpu;
	thread->vtime = p->scx.dsq_vtime;
	t->slot = a->slot + 1;
	mark(a->slot);
	wake(thread, p->scx.flags & core_enum(scx_ent_flags, SCX_TASK_QUEUED));
	done = 0;
out:
	bpf_task_release(p);
	return done;
}

SEC("struct_ops.s/init")
s32 BPF_PROG(init)
{
	s32 failed;
	int i;

	bpf_for(i, 0, host.cpus)
	{
		failed = scx_bpf_create_dsq(i, -1);
		if (failed)
			return failed;
	}
	bpf_for(i, 0, MAX_THREADS)
	{
		failed = scx_bpf_create_dsq(THREAD_QUEUES + i, -1);
		if (failed)
			return failed;
	}
	return 0;
}

SEC("struct_ops/exit")
void BPF_PROG(on_exit, struct scx_exit_info *info)
{
	u32 zero = 0;
	struct exit_info *e = bpf_map_lookup_elem(&ended, &zero);

	if (!e)
		return;
	bpf_probe_read_kernel_str(e->reason, sizeof(e->reason), info->reason);
	bpf_probe_read_kernel_str(e->message, sizeof(e->message), info->msg);
	e->code = info->exit_code;
	e->kind = info->kind;
}

SEC(".struct_ops.link")
struct sched_ext_ops vcpu = {
    .select_cpu = (void *)select_cpu,
    .enqueue = (void *)enqueue,
    .dispatch = (void *)dispatch,
    .runnable = (void *)runnable,
    .running = (void *)running,
    .stopping = (void *)stopping,
    .quiescent = (void *)quiescent,
    .init_task = (void *)init_task,
    .exit_task = (void *)exit_task,
    .init = (void *)init,
    .exit = (void *)on_exit,
    /* Without these the kernel lets such threads run at once, before a deadline is looked at, for 20 ms. */
    .flags = SCX_OPS_ENQ_EXITING | SCX_OPS_ENQ_MIGRATION_DISABLED,
    .timeout_ms = TIMEOUT_MS,
    .name = "teiji_vcpu",
};
