/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Starts: when a vCPU thread or vhost worker lost its CPU, was woken, by whom, and got a CPU again. Told of
 * VMs whose guests report events themselves.
 *
 *            switched out             sched_waking             switched in
 *   (runs) ───────────────► [left] ───────────────► [woken] ───────────────► told, (runs)
 *                              └──── preempted, or the waking was not seen ──────▲
 *
 * sched_waking comes in the context of the waker, also where the wake-up itself is done by another CPU. What
 * comes before the thread has left its CPU is not noted: it then does not sleep, or its waker is not known.
 */
#ifndef TEIJI_STARTS_BPF_H
#define TEIJI_STARTS_BPF_H

/* Of a thread whose starts are told; NULL for all others. */
static __always_inline struct starts *starts_of(const struct clock *c)
{
	u32 index = c->own.index;

	return hinted(c->vm, HINT_STATES) ? bpf_map_lookup_elem(&thread_starts, &index) : NULL;
}

/* A thread loses its CPU. The caller holds the lock of its clock. */
static __always_inline void leaves(struct starts *s, u64 now, bool runnable)
{
	s->left = now;
	s->woken = 0;
	s->waker = 0;
	s->context = CONTEXT_UNKNOWN;
	s->slept = !runnable;
}

/* A worker handles a frame of this traced tap: so it is one of the tap's VM. */
static __always_inline void learn_vm(struct clock *c, const struct tap_queue *q)
{
	struct traced_tap *tap = c->vm ? NULL : bpf_map_lookup_elem(&taps, &q->ifindex);

	if (tap)
		c->vm = tap->vm;
}

/*
 * The thread has got a CPU. That of a vCPU that was preempted is left out, as its states tell it. As for
 * states, there are so many in each span, and they fill at most half of the buffer; `nth` shows what is
 * missing. Not inlined, for the verifier's sake.
 */
__noinline int tell_start(u32 tid, u64 now)
{
	struct clock *c = clock_of(tid);
	struct starts *s = c ? starts_of(c) : NULL;
	struct starts was;
	struct rec_start *r;

	if (!s || !s->left)
		return 0;
	bpf_spin_lock(&c->lock);
	if (s->slept || c->actor == ACTOR_WORKER) {
		s->nth += 1;
		if (now >> 26 != s->told_at >> 26)
			s->told = 0;
		s->told_at = now;
		s->told += 1;
	}
	was = *s;
	s->left = 0;
	bpf_spin_unlock(&c->lock);
	if (!was.left || (!was.slept && c->actor != ACTOR_WORKER) || was.told > STARTS_AT_ONCE ||
	    bpf_ringbuf_query(&records, BPF_RB_AVAIL_DATA) >
		bpf_ringbuf_query(&records, BPF_RB_RING_SIZE) / 2)
		return 0;
	r = bpf_ringbuf_reserve(&records, sizeof(*r), 0);
	if (!r)
		return 0;
	fill_head(&r->head, now, REC_START, c->actor, 0);
	r->left = was.left;
	r->woken = was.woken;
	r->tid = tid;
	r->waker = was.waker;
	r->vm = c->vm;
	r->vcpu = c->vcpu;
	r->nth = was.nth;
	r->pad = 0;
	r->slept = was.slept;
	r->context = was.context;
	submit(r);
	return 1;
}

static __always_inline void waking(u32 tid)
{
	struct clock *c = clock_of(tid);
	struct starts *s;
	u32 waker;
	u64 now;
	u8 in;

	if (!c)
		return;
	s = starts_of(c);
	if (!s || !s->left || !s->slept || s->woken)
		return;
	now = bpf_ktime_get_ns();
	in = context();
	waker = in == CONTEXT_THREAD ? current_tid() : 0;
	bpf_spin_lock(&c->lock);
	if (s->left && s->slept && !s->woken) {
		s->woken = now;
		s->waker = waker;
		s->context = in;
	}
	bpf_spin_unlock(&c->lock);
}

SEC("tp_btf/sched_waking")
int BPF_PROG(on_sched_waking, struct task_struct *task)
{
	waking(task->pid);
	return 0;
}

#endif
