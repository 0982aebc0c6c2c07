/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Probes of the scheduler: what runs on each CPU, and the states of traced threads.
 */
#ifndef TEIJI_THREADS_BPF_H
#define TEIJI_THREADS_BPF_H

#define IDLE 0 /* pid of every idle task */

static __always_inline struct cpu *cpu_of(u32 number)
{
	return &running[number % MAX_CPUS];
}

static __always_inline void wait_begins(struct clock *c, u32 tid, u32 cpu, u32 holder, u64 now)
{
	struct cpu *r = cpu_of(cpu);

	r->waiter = tid;
	r->since = now;
	r->held = 0;
	r->holder = holder;
	c->preempted_by = holder;
	c->waits_on = cpu;
}

/*
 * `tid` has had the CPU until now. Of all that have it in a wait, one is remembered: each with a probability
 * in proportion to the time that it had. So of many waits, each thread gets its part; to remember the last
 * one would favour threads that run briefly, since the scheduler chooses anew when they sleep.
 */
static __always_inline void held(struct cpu *r, u32 tid, u64 now)
{
	u64 ns = now > r->since ? now - r->since : 0;

	r->since = now;
	if (tid == IDLE)
		return;
	r->held += ns;
	/* In units of 256 ns, so that a wait of 18 minutes does not overflow. */
	if ((u64)bpf_get_prandom_u32() * (r->held >> 8) >> 32 < ns >> 8)
		r->holder = tid;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next,
	     u32 prev_state)
{
	u32 in = next->pid, out = prev->pid, number = bpf_get_smp_processor_id();
	struct clock *c = clock_of(out), *to = clock_of(in);
	struct cpu *r = cpu_of(number);
	u64 now = 0;

	r->tid = in;
	if (r->waiter) {
		now = bpf_ktime_get_ns();
		held(r, out, now);
	}
	if (c) {
		bool runnable = preempt || !prev_state;

		if (!now)
			now = bpf_ktime_get_ns();
		bpf_spin_lock(&c->lock);
		clock_account(c, now);
		if (runnable) {
			c->resume = c->state;
			c->state = STATE_READY;
			wait_begins(c, out, number, in, now);
		} else {
			bool halted = c->state == STATE_POLL || c->state == STATE_ASLEEP;

			c->resume = halted ? STATE_ASLEEP : STATE_RUN;
			c->state = STATE_ASLEEP;
		}
		bpf_spin_unlock(&c->lock);
	}

	if (to) {
		struct cpu *w = cpu_of(to->waits_on);
		bool waited = w->waiter == in;

		if (!now)
			now = bpf_ktime_get_ns();
		/* It began its wait for another CPU, where something runs still. */
		if (waited && w != r)
			held(w, w->tid, now);
		bpf_spin_lock(&to->lock);
		clock_account(to, now);
		if (to->state == STATE_READY) {
			if (waited)
				to->preempted_by = w->holder;
			else if (out != IDLE)
				to->preempted_by = out;
		}
		to->state = to->resume;
		bpf_spin_unlock(&to->lock);
		if (waited)
			w->waiter = 0;
	}
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_sched_wakeup, struct task_struct *task)
{
	struct clock *c = clock_of(task->pid);
	u32 holder, cpu = task->thread_info.cpu;
	u64 now;

	if (!c || c->state != STATE_ASLEEP)
		return 0;
	holder = cpu_of(cpu)->tid;
	if (holder == IDLE || holder == (u32)task->pid)
		return 0;
	now = bpf_ktime_get_ns();
	bpf_spin_lock(&c->lock);
	if (c->state == STATE_ASLEEP) {
		clock_account(c, now);
		c->state = STATE_READY;
		wait_begins(c, task->pid, cpu, holder, now);
	}
	bpf_spin_unlock(&c->lock);
	return 0;
}

#endif
