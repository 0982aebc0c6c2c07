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
 * Deadlines (deadline.bpf.h). A VM for which a packet is pending has the deadline of the oldest one. Without
 * one, each of its threads has that of its wake-up, so that a VM that sends is not kept waiting. Nothing is
 * moved between queues when a deadline changes: each thread of a real-time VM has a queue of its own, and
 * `dispatch` compares.
 *
 * Budget. For what is released within a period (deadline.bpf.h) a VM goes before others for at most its
 * budget, its vCPUs half of it without a pending packet: so a guest that never sleeps has half of it left
 * when a packet comes. A thread that begins to run takes a part of what is left and gives back what it does
 * not use, so that vCPUs that run at once do not use more. A timer ends what the kernel's ticks would end too
 * late. Beyond its budget a VM's threads have the share of ordinary threads. A late packet has no deadline of
 * its own, and after EXPIRES deadlines it no longer counts. On each CPU, threads that go before others get at
 * most 9/10 of the time and 45 ms at a time, if others wait.
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
#include "wake.bpf.h"
#include "packets.bpf.h"
#include "dispatch.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* A thread of a real-time VM is awake from now on, or asleep. */
static __always_inline void wake(struct thread *thread, bool awake)
{
	struct vm_state *s;
	u32 vm = thread->vm;

	s = bpf_map_lookup_elem(&states, &vm);
	if (!s || __sync_val_compare_and_swap(&thread->awake, !awake, awake) == awake)
		return;
	if (awake) {
		thread->woke_at = bpf_ktime_get_ns();
		if (!__sync_fetch_and_add(&s->awake, 1))
			s->woke_at = thread->woke_at;
	} else if (__sync_fetch_and_add(&s->awake, -1) == 1) {
		all_done(s, bpf_ktime_get_ns());
	}
}

SEC("struct_ops/runnable")
void BPF_PROG(runnable, struct task_struct *p, u64 enq_flags)
{
	struct task *t = task_of(p);
	struct thread *thread;

	if (!t)
		return;
	add_load(p, t);
	thread = t->slot ? thread_at(t->slot - 1) : NULL;
	if (!thread)
		return;
	mark(t->slot - 1);
	thread->runnable_at = bpf_ktime_get_ns();
	wake(thread, true);
}

SEC("struct_ops/quiescent")
void BPF_PROG(quiescent, struct task_struct *p, u64 deq_flags)
{
	struct task *t = task_of(p);
	struct thread *thread;

	if (!t)
		return;
	remove_load(t);
	thread = t->slot ? thread_at(t->slot - 1) : NULL;
	if (!thread)
		return;
	unmark(t->slot - 1);
	thread->runnable_at = 0;
	if (deq_flags & core_enum(scx_deq_flags, SCX_DEQ_SLEEP))
		wake(thread, false);
}

/* It is no longer a thread of sched_ext, for example as it has got a real-time class. */
SEC("struct_ops/disable")
void BPF_PROG(disable, struct task_struct *p)
{
	struct task *t = task_of(p);
	struct thread *thread = t && t->slot ? thread_at(t->slot - 1) : NULL;

	if (!thread)
		return;
	unmark(t->slot - 1);
	thread->runnable_at = 0;
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

/* Its slot is free. */
static __always_inline void release(struct task *t)
{
	u32 slot = __sync_lock_test_and_set(&t->slot, 0);
	struct thread *thread = slot ? thread_at(slot - 1) : NULL;

	if (!thread)
		return;
	wake(thread, false);
	unmark(slot - 1);
	thread->pid = 0;
}

SEC("struct_ops/exit_task")
void BPF_PROG(exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
	struct task *t = task_of(p);

	if (!t)
		return;
	__sync_lock_test_and_set(&t->dead, 1);
	release(t);
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
	/* it stays for the next thread that gets the slot */
	done = scx_bpf_create_dsq(THREAD_QUEUES + a->slot, -1);
	if (done && done != -EEXIST)
		goto out;
	__builtin_memset(thread, 0, sizeof(*thread));
	thread->pid = a->pid;
	thread->vm = a->vm;
	thread->role = a->role;
	thread->cpu = t->cpu;
	thread->vtime = p->scx.dsq_vtime;
	/* from its next wake-up on it is part of the other sum */
	remove_load(t);
	mark(a->slot);
	wake(thread, p->scx.flags & core_enum(scx_ent_flags, SCX_TASK_QUEUED));
	__sync_lock_test_and_set(&t->slot, a->slot + 1);
	done = 0;
	/* It may have ended meanwhile: either this or `exit_task` sees what the other did. */
	if (__sync_fetch_and_add(&t->dead, 0)) {
		release(t);
		done = -ESRCH;
	}
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
		failed = scx_bpf_create_dsq(i, -1) ?: make_turn(i);
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
    .disable = (void *)disable,
    .init_task = (void *)init_task,
    .exit_task = (void *)exit_task,
    .init = (void *)init,
    .exit = (void *)on_exit,
    /* Without these the kernel lets such threads run at once, before a deadline is looked at, for 20 ms. */
    .flags = SCX_OPS_ENQ_EXITING | SCX_OPS_ENQ_MIGRATION_DISABLED | SCX_OPS_ENQ_LAST,
    .timeout_ms = TIMEOUT_MS,
    .name = "teiji_vcpu",
};
