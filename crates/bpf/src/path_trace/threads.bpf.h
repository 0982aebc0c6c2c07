/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Probes of the scheduler: what runs on each CPU, and the states of traced threads.
 *
 * While a traced thread waits, it is on the list of the CPU that it waits for; so each switch of that CPU
 * tells its clock who has the CPU next. The list is corrected where it is used: a thread that no longer
 * waits for the CPU is taken off, whatever probe was skipped.
 */
#ifndef TEIJI_THREADS_BPF_H
#define TEIJI_THREADS_BPF_H

#define IDLE 0		     /* pid of every idle task */
#define NO_CPU (~0U)	     /* a thread does not wait */
#define TASK_INTERRUPTIBLE 1 /* include/linux/sched.h */

static __always_inline struct cpu *cpu_of(u32 number)
{
	return &running[number % MAX_CPUS];
}

/* Puts a waiting thread on the list of a CPU. If there is no place, nobody is named for its wait. */
static __always_inline void enlist(struct clock *c, u32 tid, u32 number)
{
	struct cpu *r = cpu_of(number);
	int i;

	for (i = 0; i < MAX_WAITERS; i++) {
		if (!__sync_val_compare_and_swap(&r->waiters[i], 0, tid)) {
			__sync_fetch_and_add(&r->waiting, 1);
			return;
		}
	}
	bpf_spin_lock(&c->lock);
	c->runs_instead = 0;
	bpf_spin_unlock(&c->lock);
}

static __always_inline void free_place(struct cpu *r, int i, u32 tid)
{
	if (__sync_val_compare_and_swap(&r->waiters[i], tid, 0) == tid)
		__sync_fetch_and_add(&r->waiting, -1);
}

static __always_inline void delist(u32 tid, u32 number)
{
	struct cpu *r = cpu_of(number);
	int i;

	for (i = 0; i < MAX_WAITERS; i++)
		if (r->waiters[i] == tid)
			free_place(r, i, tid);
}

/* The caller holds the lock, and calls enlist() without it. */
static __always_inline void wait_begins(struct clock *c, u32 number, u32 runs_instead)
{
	clock_into(c, STATE_READY);
	c->waits_on = number;
	c->runs_instead = runs_instead;
}

/*
 * `in` has got a CPU: a thread on the list of those who wait for it has waited for another thread until now.
 * Returns whether it still waits. Not inlined: the verifier looks at a global function once, instead of once
 * for each place of the list and each way to get there.
 */
__noinline int tell_waiter(u32 tid, u32 number, u32 in, u64 now)
{
	struct clock *c = clock_of(tid);
	bool waits;

	if (!c)
		return 0;
	bpf_spin_lock(&c->lock);
	waits = c->state == STATE_READY && c->waits_on == number;
	if (waits) {
		clock_account(c, now);
		c->runs_instead = in;
	}
	bpf_spin_unlock(&c->lock);
	return waits;
}

static __always_inline void tell_waiters(struct cpu *r, u32 number, u32 in, u64 now)
{
	int i;

	for (i = 0; i < MAX_WAITERS; i++) {
		u32 tid = r->waiters[i];

		if (tid && !tell_waiter(tid, number, in, now))
			free_place(r, i, tid);
	}
}

/* idle: `out` sleeps until there is work (TASK_INTERRUPTIBLE), as a worker does that has signalled all it
 * took. */
static __always_inline void switched(u32 number, u32 out, u32 in, bool runnable, bool idle)
{
	struct clock *c = clock_of(out), *to = clock_of(in);
	struct cpu *r = cpu_of(number);
	u64 now = 0;
	u32 waited_on = NO_CPU;
	struct starts *starts;
	bool told;

	r->tid = in;
	if (to) {
		now = bpf_ktime_get_ns();
		bpf_spin_lock(&to->lock);
		clock_account(to, now);
		if (to->state == STATE_READY)
			waited_on = to->waits_on;
		told = is_told(to, to->state, to->resume);
		clock_into(to, to->resume);
		bpf_spin_unlock(&to->lock);
		if (waited_on != NO_CPU)
			delist(in, waited_on);
		if (told)
			tell_state(in);
		starts = starts_of(to);
		if (starts && starts->left)
			tell_start(in, now);
	}

	if (r->waiting) {
		if (!now)
			now = bpf_ktime_get_ns();
		tell_waiters(r, number, in, now);
	}

	if (c) {
		if (!now)
			now = bpf_ktime_get_ns();
		tell_long_exit(c, out, now);
		starts = starts_of(c);
		bpf_spin_lock(&c->lock);
		clock_account(c, now);
		told = is_told(c, c->state, runnable ? STATE_READY : STATE_ASLEEP);
		if (runnable) {
			c->resume = c->state;
			wait_begins(c, number, in);
		} else {
			bool halted = c->state == STATE_POLL || c->state == STATE_ASLEEP;

			c->resume = halted ? STATE_ASLEEP : STATE_RUN;
			clock_into(c, STATE_ASLEEP);
			if (idle && c->holds)
				c->holds = HELD_WHEN_IDLE;
			c->slept_at = now;
			c->sends = 0;
			if (c->taking.ifindex) {
				c->taking.ifindex = 0;
				c->signal.begun = 0;
			}
		}
		if (starts)
			leaves(starts, now, runnable);
		bpf_spin_unlock(&c->lock);
		if (runnable)
			enlist(c, out, number);
		if (told)
			tell_state(out);
	}
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next,
	     u32 prev_state)
{
	switched(bpf_get_smp_processor_id(), prev->pid, next->pid, preempt || !prev_state,
		 prev_state & TASK_INTERRUPTIBLE);
	return 0;
}

static __always_inline void woken(u32 tid, u32 number)
{
	struct clock *c = clock_of(tid);
	u32 holder = cpu_of(number)->tid;
	bool waits = false;
	u64 now;

	if (!c || c->state != STATE_ASLEEP || holder == IDLE || holder == tid)
		return;
	now = bpf_ktime_get_ns();
	bpf_spin_lock(&c->lock);
	if (c->state == STATE_ASLEEP) {
		clock_account(c, now);
		wait_begins(c, number, holder);
		waits = true;
	}
	bpf_spin_unlock(&c->lock);
	if (waits)
		enlist(c, tid, number);
	if (waits && is_told(c, STATE_ASLEEP, STATE_READY))
		tell_state(tid);
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_sched_wakeup, struct task_struct *task)
{
	woken(task->pid, task->thread_info.cpu);
	return 0;
}

/* The last that is heard of a thread, or of a process: in do_exit(), before its id is free for another one.
 */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_thread_exit, struct task_struct *task)
{
	u32 vm = task->tgid;

	clock_end(task->pid);
	if (hinted(vm, HINT_VM) && task->signal->live.counter == 0) {
		bpf_map_delete_elem(&vms, &vm);
		bpf_map_delete_elem(&rung_by, &vm);
	}
	return 0;
}

/* A thread that waits for a CPU is moved to the queue of another. */
static __always_inline void migrated(u32 tid, u32 number)
{
	struct clock *c = clock_of(tid);
	u32 before = NO_CPU;
	u64 now;

	if (!c || c->state != STATE_READY)
		return;
	now = bpf_ktime_get_ns();
	bpf_spin_lock(&c->lock);
	if (c->state == STATE_READY) {
		clock_account(c, now);
		before = c->waits_on;
		wait_begins(c, number, cpu_of(number)->tid);
	}
	bpf_spin_unlock(&c->lock);
	if (before != NO_CPU) {
		delist(tid, before);
		enlist(c, tid, number);
	}
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_sched_migrate_task, struct task_struct *task, int number)
{
	migrated(task->pid, number);
	return 0;
}

#endif
