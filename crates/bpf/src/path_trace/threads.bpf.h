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
	u64 now = bpf_ktime_get_ns();
	u32 cpu = bpf_get_smp_processor_id();
	u32 in = next->pid, out = prev->pid;
	u32 *slot = bpf_map_lookup_elem(&running, &cpu);
	struct clock *c;

	if (slot)
		*slot = in;

	c = out ? clock_of(out) : NULL;
	if (c) {
		bool runnable = preempt || !prev_state;

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

	c = in ? clock_of(in) : NULL;
	if (c) {
		bpf_spin_lock(&c->lock);
		clock_settle(c, now);
		if (c->state == STATE_READY && out != IDLE)
			c->behind = out;
		c->state = c->resume;
		bpf_spin_unlock(&c->lock);
	}
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_sched_wakeup, struct task_struct *task)
{
	struct clock *c = clock_of(task->pid);
	u32 cpu, *holder;
	u64 now;

	if (!c || c->state != STATE_ASLEEP)
		return 0;
	cpu = task->thread_info.cpu;
	holder = bpf_map_lookup_elem(&running, &cpu);
	if (!holder || *holder == IDLE || *holder == (u32)task->pid)
		return 0;
	now = bpf_ktime_get_ns();
	bpf_spin_lock(&c->lock);
	if (c->state == STATE_ASLEEP) {
		clock_settle(c, now);
		c->state = STATE_READY;
		c->behind = *holder;
	}
	bpf_spin_unlock(&c->lock);
	return 0;
}

#endif
