/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Deadlines and budgets of real-time VMs: whether a VM's threads go before others, and with which deadline.
 *
 * Packets of a VM are numbered. Those from `done` to `arrived` are pending:
 *
 *   net_dev_start_xmit on its tap ──► arrived + 1
 *   netif_receive_skb from its tap, its threads all asleep, expired ──► done + 1, or all of them
 */
#ifndef TEIJI_SCX_VCPU_DEADLINE_BPF_H
#define TEIJI_SCX_VCPU_DEADLINE_BPF_H

#include "maps.bpf.h"

/* Whether a thread goes before others, and with which deadline; or by weight. */
struct place {
	u64 deadline; /* NO_DEADLINE: by weight */
	u64 left;     /* for how long, ns */
	bool packet;  /* since a packet is pending */
};

/* Begins another period if the last one has ended. What was used beyond the budget is taken off later ones.
 */
static __always_inline void renew(const struct vm_settings *vm, struct vm_state *s, u64 now)
{
	u64 end = s->period_end, periods;
	s64 used, unasked, budget;

	if (is_before(now, end))
		return;
	periods = (now - end) / vm->period + 1;
	/* the one that changes it begins the period */
	if (__sync_val_compare_and_swap(&s->period_end, end, end + periods * vm->period) != end)
		return;
	used = s->used;
	unasked = s->unasked;
	if (used + (s64)MIN_SLICE > (s64)vm->budget)
		__sync_fetch_and_add(&s->exhausted, 1);
	/* of all periods that have ended */
	budget = least(periods, MAX_PERIODS) * vm->budget;
	__sync_fetch_and_sub(&s->used, used > budget ? budget : used);
	__sync_fetch_and_sub(&s->unasked, unasked > budget / 2 ? budget / 2 : unasked);
}

/*
 * The deadline of the first pending packet that is not late; of the period if there is none: packets that are
 * late must not keep other VMs from their deadlines, nor fresh packets from theirs. Each call leaves one late
 * packet behind.
 */
static __always_inline u64 first_deadline(const struct vm_settings *vm, struct vm_state *s, u64 done,
					  u64 arrived, u64 now)
{
	u64 late = s->late, first = is_before(late, done) ? done : late, deadline;

	if (first == arrived)
		return s->period_end;
	deadline = s->arrivals[first % PENDING_MAX] + vm->deadline;
	if (is_before(now, deadline))
		return deadline;
	__sync_val_compare_and_swap(&s->late, late, first + 1);
	return s->period_end;
}

/* Not static: the verifier looks at it once for each program, not once for each call. */
__noinline int find_place(u32 vm_index, u64 now, struct place *place)
{
	const struct vm_settings *vm = bpf_map_lookup_elem(&vms, &vm_index);
	struct vm_state *s = bpf_map_lookup_elem(&states, &vm_index);
	u64 done, arrived, oldest;
	s64 left, unasked;

	if (!place)
		return 0;
	place->deadline = NO_DEADLINE;
	place->left = 0;
	place->packet = false;
	if (!vm || !s || !vm->budget)
		return 0;
	renew(vm, s, now);
	left = (s64)vm->budget - s->used;
	if (left < (s64)MIN_SLICE)
		return 0;
	done = s->done;
	arrived = s->arrived;
	if (done != arrived) {
		oldest = s->arrivals[done % PENDING_MAX];
		if (is_before(now, oldest + vm->deadline * EXPIRES)) {
			place->deadline = first_deadline(vm, s, done, arrived, now);
			place->left = left;
			place->packet = true;
			return 0;
		}
		/* the next one is looked at the next time */
		if (__sync_val_compare_and_swap(&s->done, done, done + 1) == done)
			__sync_fetch_and_add(&s->expired, 1);
	}
	unasked = (s64)vm->budget / 2 - s->unasked;
	if (unasked >= (s64)MIN_SLICE) {
		place->deadline = s->period_end;
		place->left = least(unasked, left);
	}
	return 0;
}

static __always_inline struct place place_of(u32 vm_index, u64 now)
{
	struct place place = {.deadline = NO_DEADLINE};

	find_place(vm_index, now, &place);
	return place;
}

/* ---- packets ---- */

/* A packet has come for a VM. Returns whether none was pending. */
static __always_inline bool arrive(u32 vm_index, u64 now)
{
	struct vm_state *s = bpf_map_lookup_elem(&states, &vm_index);
	u64 number;
	int i;

	if (!s)
		return false;
	__sync_fetch_and_add(&s->packets, 1);
	/* Others may come at the same time: the arrival is written before it counts. */
	bpf_for(i, 0, 4)
	{
		number = s->arrived;
		if (number - s->done >= PENDING_MAX)
			return false; /* those before it keep the VM before others */
		s->arrivals[number % PENDING_MAX] = now;
		if (__sync_val_compare_and_swap(&s->arrived, number, number + 1) == number)
			return number == s->done;
	}
	return false;
}

/* Takes a part of the budget, and gives back what is not used of it: several threads that run at once cannot
 * use more than there is. */
static __always_inline u64 grant(u32 vm_index, struct task *t, const struct place *place, u64 most)
{
	struct vm_state *s = bpf_map_lookup_elem(&states, &vm_index);
	u64 half = place->left / 2, granted = least(place->left, half > MIN_GRANT ? half : MIN_GRANT);

	if (!s)
		return MIN_SLICE;
	granted = least(granted, most);
	t->granted = granted;
	t->granted_in = s->period_end;
	__sync_fetch_and_add(&s->used, granted);
	if (!place->packet)
		__sync_fetch_and_add(&s->unasked, granted);
	return granted;
}

/* A thread that went before others has run for so long. */
static __always_inline void use(struct vm_state *s, struct task *t, u64 ran)
{
	/* what was granted in an earlier period is forgotten */
	u64 back = t->granted_in == s->period_end ? t->granted : 0;

	if (t->granted) {
		__sync_fetch_and_add(&s->turns, 1);
		if (ran > t->granted + OVERRUN)
			__sync_fetch_and_add(&s->overruns, 1);
	}
	t->granted = 0;
	__sync_fetch_and_add(&s->used, ran - back);
	if (!t->packet)
		__sync_fetch_and_add(&s->unasked, ran - back);
	__sync_fetch_and_add(&s->edf_time, ran);
}

/* The VM has sent a packet. */
static __always_inline void answer(u32 vm_index)
{
	struct vm_state *s = bpf_map_lookup_elem(&states, &vm_index);
	u64 done;

	if (!s)
		return;
	done = s->done;
	if (done != s->arrived)
		__sync_val_compare_and_swap(&s->done, done, done + 1);
}

/* All threads of the VM are asleep: it has done what its packets asked for, but for one that no thread was
 * told of. */
static __always_inline void all_done(struct vm_state *s, u64 now)
{
	u64 arrived = s->arrived, done = s->done;

	if (arrived != done && now - s->arrivals[(arrived - 1) % PENDING_MAX] < JUST_ARRIVED)
		arrived--;
	if (arrived != done)
		__sync_val_compare_and_swap(&s->done, done, arrived);
}

#endif
