/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Probes of the scheduler: what runs on each CPU, and the states of traced threads.
 */
#ifndef TEIJI_THREADS_BPF_H
#define TEIJI_THREADS_BPF_H

#define IDLE 0 /* pid of every idle task */

SEC("tp_btf/sched_switch")
int BPF_PROG(on_sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next,
	     u32 prev_state)
{
	u32 in = next->pid, out = prev->pid;
	struct clock *c = clock_of(out), *to = clock_of(in);
	u64 now = 0;

	running[bpf_get_smp_processor_id() % MAX_CPUS].tid = in;
	if (c) {
		bool runnable = preempt || !prev_state;

		now = bpf_ktime_get_ns();
		bpf_spin_lock(&c->lock);
		clock_settle(c, now);
		if (runnable) {
			c->resume = c->state;
			c->state = STATE_READY;
			c->behind = in;
		} else {
			bool halted = c->state == STATE_POLL || c->state == STATE_ASLEEP;

			c->resume = halted ? STATE_ASLEEP : STATE_RUN;
			c->state = STATE_ASLEEP;
		}
		bpf_spin_unlock(&c->lock);
	}

	if (to) {
		if (!now)
			now = bpf_ktime_get_ns();
		bpf_spin_lock(&to->lock);
		clock_settle(to, now);
		if (to->state == STATE_READY && out != IDLE)
			to->behind = out;
		to->state = to->resume;
		bpf_spin_unlock(&to->lock);
	}
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_sched_wakeup, struct task_struct *task)
{
	struct clock *c = clock_of(task->pid);
	u32 holder;
	u64 now;

	if (!c || c->state != STATE_ASLEEP)
		return 0;
	holder = running[task->thread_info.cpu % MAX_CPUS].tid;
	if (holder == IDLE || holder == (u32)task->pid)
		return 0;
	now = bpf_ktime_get_ns();
	bpf_spin_lock(&c->lock);
	if (c->state == STATE_ASLEEP) {
		clock_settle(c, now);
		c->state = STATE_READY;
		c->behind = holder;
	}
	bpf_spin_unlock(&c->lock);
	return 0;
}

#endif
