/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Deadlines and budgets of real-time VMs: whether a VM's threads go before others, and with which deadline.
 *
 * Packets of a VM are numbered. Those from `done` to `arrived` are pending:
 *
 *   net_dev_start_xmit on its tap ──► arrived + 1
 *   netif_receive_skb from its tap, its threads all asleep, expired ──► done + 1, or all of them
 *
 * A job of a thread has a release time; its deadline is the VM's `deadline` later. It is released
 *
 *   vCPU, packet pending  when the oldest packet that is not late arrived, or the VM woke up after that;
 *   vCPU, none pending    when it woke up, then every `deadline` again while it stays awake; not before the
 *                         arrival of the packet that was answered last: an answer must not make it more
 * urgent; vhost worker          at the earlier of these two, without that last rule: frames of the guest must
 * not wait for packets that came later.
 *
 * The budget is charged to the time of the release, in slots of which a period has SLOTS_PER_PERIOD: in no
 * window of so many slots more than the budget is used. If there is less left, the release is put off until
 * there is more. So a VM is a sporadic task: there are at least SLOTS_PER_PERIOD - 1 slots between releases
 * of as much as the budget, and if all its threads are on one CPU, one of them is ready there from a release
 * until the job is done. `control::admission::cpu` tests whether all deadlines are kept.
 */
#ifndef TEIJI_SCX_VCPU_DEADLINE_BPF_H
#define TEIJI_SCX_VCPU_DEADLINE_BPF_H

#include "maps.bpf.h"

/* What is left of the budget for what was released in a slot, ns; less if something is owed (`debt`). */
struct left {
	s64 all;
	s64 unasked; /* of this, without a packet */
};

/* Whether a thread goes before others, and with which deadline; or by weight. */
struct place {
	u64 deadline;	/* NO_DEADLINE: by weight */
	u64 usable;	/* for how long, ns */
	u64 slot;	/* of the release */
	u64 again;	/* NO_DEADLINE as the budget is used up: when there may be more; else 0 */
	bool packet;	/* a packet is pending */
	bool asked;	/* the whole budget can be used, not only half of it */
	bool exhausted; /* less than MIN_SLICE of the budget was left at the release: it was put off */
};

/* The periods that contain the slot begin with it, or up to SLOTS_PER_PERIOD - 1 before; in none of them more
 * than the budget is used. Not static: the verifier looks at it once for each program, not once for each
 * call. */
__noinline int find_left(u32 vm_index, u64 slot, u64 latest, struct left *left)
{
	const struct vm_settings *vm = bpf_map_lookup_elem(&vms, &vm_index);
	struct vm_state *s = bpf_map_lookup_elem(&states, &vm_index);
	s64 all = 0, unasked = 0, most_all = 0, most_unasked = 0;
	u64 end = slot - (SLOTS_PER_PERIOD - 1);
	int i;

	if (!left)
		return 0;
	left->all = left->unasked = 0;
	if (!vm || !s)
		return 0;
	bpf_for(i, 0, 2 * SLOTS_PER_PERIOD - 1)
	{
		if (is_before(latest, end))
			break;
		all += s->used[end % SLOTS];
		unasked += s->unasked[end % SLOTS];
		if (i >= SLOTS_PER_PERIOD) {
			all -= s->used[(end - SLOTS_PER_PERIOD) % SLOTS];
			unasked -= s->unasked[(end - SLOTS_PER_PERIOD) % SLOTS];
		}
		most_all = all > most_all ? all : most_all;
		most_unasked = unasked > most_unasked ? unasked : most_unasked;
		end++;
	}
	left->all = (s64)vm->budget - most_all;
	left->unasked = (s64)vm->budget / 2 - most_unasked;
	return 0;
}

/* A slot is charged with what is owed, as far as there is room in the periods that contain it. */
static __always_inline void pay(s64 *debt, s64 *slot, s64 left)
{
	s64 owed = *debt, paid = left < owed ? left : owed;

	/* or another CPU pays */
	if (paid > 0 && __sync_val_compare_and_swap(debt, owed, owed - paid) == owed)
		__sync_fetch_and_add(slot, paid);
}

/* A VM has slept for so many slots beyond those that are kept: what it could have had there is off its debt.
 */
static __always_inline void forgive(s64 *debt, u64 budget, u64 slots)
{
	/* of 16 periods at most; a budget of 13 days is as good as more, and the product does not overflow */
	s64 owed = *debt,
	    off = least(budget, 1ULL << 50) * least(slots, 16 * SLOTS_PER_PERIOD) / SLOTS_PER_PERIOD;

	if (owed > 0)
		__sync_val_compare_and_swap(debt, owed, off < owed ? owed - off : 0);
}

/* What is owed is charged to the first slots with room, as if it had been released then. */
static __always_inline void pay_all(u32 vm_index, struct vm_state *s, u64 latest)
{
	u64 slot = s->owed_from;
	struct left left;
	int i;

	if (is_before(latest, slot))
		slot = latest;
	if (is_before(slot, latest - 2 * SLOTS_PER_PERIOD))
		slot = latest - 2 * SLOTS_PER_PERIOD;
	bpf_for(i, 0, 2 * SLOTS_PER_PERIOD + 1)
	{
		if (is_before(latest, slot) || (s->debt <= 0 && s->unasked_debt <= 0))
			break;
		find_left(vm_index, slot, latest, &left);
		pay(&s->debt, &s->used[slot % SLOTS], left.all);
		pay(&s->unasked_debt, &s->unasked[slot % SLOTS], left.unasked);
		slot++;
	}
}

/* The slots up to this one. Those that begin are empty; the one after them, too: it is the oldest one, which
 * is of no use any more, and nobody charges it before it begins. */
static __always_inline u64 latest_slot(u32 vm_index, const struct vm_settings *vm, struct vm_state *s,
				       u64 latest)
{
	u64 slot = s->slot;
	s64 passed = latest - slot;
	int i;

	/* another CPU's clock may be a little ahead */
	if (passed <= 0 && passed > -SLOTS_PER_PERIOD)
		return slot;
	/* all of them if the period is another one now */
	bpf_for(i, 0, SLOTS)
	{
		/* or another CPU does it */
		if ((passed > 0 && i >= passed) || s->slot != slot)
			break;
		s->used[(latest + 1 - i) % SLOTS] = 0;
		s->unasked[(latest + 1 - i) % SLOTS] = 0;
	}
	if (__sync_val_compare_and_swap(&s->slot, slot, latest) != slot)
		return latest;
	if (passed <= 0) {
		s->debt = s->unasked_debt = 0;
		s->owed_from = latest;
	} else if (s->debt > 0 || s->unasked_debt > 0) {
		if (passed > 2 * SLOTS_PER_PERIOD) {
			forgive(&s->debt, vm->budget, passed - 2 * SLOTS_PER_PERIOD);
			forgive(&s->unasked_debt, vm->budget / 2, passed - 2 * SLOTS_PER_PERIOD);
		}
		pay_all(vm_index, s, latest);
	}
	return latest;
}

/* The arrival of the first pending packet that is not late; 0 if there is none: packets that are late must
 * not keep other VMs from their deadlines, nor fresh packets from theirs. Each call leaves one late packet
 * behind. */
static __always_inline u64 first_arrival(const struct vm_settings *vm, struct vm_state *s, u64 done,
					 u64 arrived, u64 now)
{
	u64 late = s->late, first = is_before(late, done) ? done : late, arrival;

	if (first == arrived)
		return 0;
	arrival = s->arrivals[first % PENDING_MAX];
	if (is_before(now, arrival + vm->deadline))
		return arrival;
	__sync_val_compare_and_swap(&s->late, late, first + 1);
	return 0;
}

/* A thread begins to run whose VM had used its budget up: counted once in each period. */
static __always_inline void count_used_up(u32 vm_index, u64 now)
{
	const struct vm_settings *vm = bpf_map_lookup_elem(&vms, &vm_index);
	struct vm_state *s = bpf_map_lookup_elem(&states, &vm_index);
	u64 before;

	if (!vm || !s)
		return;
	before = s->used_up;
	if (now - before >= vm->period && __sync_val_compare_and_swap(&s->used_up, before, now) == before)
		__sync_fetch_and_add(&s->exhausted, 1);
}

/* How much of this a thread can use; 0 if it is too little. */
static __always_inline u64 usable(const struct vm_state *s, const struct left *left, bool asked)
{
	s64 all = left->all - s->debt, unasked = left->unasked - s->unasked_debt;
	s64 most = !asked && unasked < all ? unasked : all;

	return most < (s64)MIN_SLICE ? 0 : most;
}

/* Nothing is left in the latest slot: after how many slots there is, if nobody uses more. Not static: see
 * find_left. */
__noinline int find_again(u32 vm_index, u64 latest, u32 asked)
{
	const struct vm_settings *vm = bpf_map_lookup_elem(&vms, &vm_index);
	struct vm_state *s = bpf_map_lookup_elem(&states, &vm_index);
	s64 all = 0, unasked = 0;
	struct left left;
	int i, after = SLOTS_PER_PERIOD;

	if (!vm || !s)
		return after;
	bpf_for(i, 0, SLOTS_PER_PERIOD)
	{
		all += s->used[(latest - i) % SLOTS];
		unasked += s->unasked[(latest - i) % SLOTS];
	}
	/* the oldest slots of the period that ends with the latest one are no longer part of it */
	bpf_for(i, 0, SLOTS_PER_PERIOD)
	{
		all -= s->used[(latest - SLOTS_PER_PERIOD + 1 + i) % SLOTS];
		unasked -= s->unasked[(latest - SLOTS_PER_PERIOD + 1 + i) % SLOTS];
		left.all = (s64)vm->budget - all;
		left.unasked = (s64)vm->budget / 2 - unasked;
		if (usable(s, &left, asked)) {
			after = i + 1;
			break;
		}
	}
	return after;
}

/* Places what was released then: from when on it has so much of the budget. */
static __always_inline void place_released(u32 vm_index, const struct vm_settings *vm, struct vm_state *s,
					   u64 released, u64 now, struct place *place)
{
	u64 width = vm->period / SLOTS_PER_PERIOD, latest, slot, most;
	struct left left;
	int i;

	if (!width)
		return;
	latest = latest_slot(vm_index, vm, s, now / width);
	slot = released / width;
	/* a deadline is no longer than a period: what was released earlier is late already */
	if (is_before(slot, latest - 2 * SLOTS_PER_PERIOD)) {
		slot = latest - 2 * SLOTS_PER_PERIOD;
		released = slot * width;
	} else if (is_before(latest, slot)) {
		slot = latest;
	}
	find_left(vm_index, slot, latest, &left);
	place->exhausted = left.all - s->debt < (s64)MIN_SLICE;
	most = usable(s, &left, place->asked);
	if (!most) {
		/* It is put off to the first slot of which enough is left. If that is none of the last ones,
		 * it has to wait. */
		find_left(vm_index, latest, latest, &left);
		if (!usable(s, &left, place->asked)) {
			place->again = (latest + find_again(vm_index, latest, place->asked)) * width;
			return;
		}
		bpf_for(i, 0, 2 * SLOTS_PER_PERIOD)
		{
			slot++;
			find_left(vm_index, slot, latest, &left);
			most = usable(s, &left, place->asked);
			if (most || slot == latest)
				break;
		}
		if (!most) {
			/* another CPU has taken it meanwhile */
			place->again = (latest + 1) * width;
			return;
		}
		released = slot * width;
	}
	place->deadline = released + vm->deadline;
	place->usable = most;
	place->slot = slot;
}

/* Of a thread with this enum thread_role that woke up at `woke`. Not static: see find_left. */
__noinline int find_place(u32 vm_index, u32 role, u64 woke, u64 now, struct place *place)
{
	const struct vm_settings *vm = bpf_map_lookup_elem(&vms, &vm_index);
	struct vm_state *s = bpf_map_lookup_elem(&states, &vm_index);
	u64 done, arrived, arrival = 0, released, answered;

	if (!place)
		return 0;
	place->deadline = NO_DEADLINE;
	place->usable = place->slot = place->again = 0;
	place->packet = place->exhausted = false;
	place->asked = false;
	if (!vm || !s || !vm->budget || !vm->deadline)
		return 0;
	done = s->done;
	arrived = s->arrived;
	if (done != arrived) {
		arrival = s->arrivals[done % PENDING_MAX];
		if (is_before(now, arrival + vm->deadline * EXPIRES)) {
			place->packet = place->asked = true;
			arrival = first_arrival(vm, s, done, arrived, now);
			/* what came while the VM slept was released when it woke up */
			if (arrival && is_before(arrival, s->woke_at))
				arrival = s->woke_at;
		} else {
			/* the next one is looked at the next time */
			arrival = 0;
			place->packet = place->asked = done + 1 != arrived;
			if (__sync_val_compare_and_swap(&s->done, done, done + 1) == done)
				__sync_fetch_and_add(&s->expired, 1);
		}
	}
	/* a worker wakes up for packets, of either direction */
	if (role == VHOST_WORKER)
		place->asked = true;
	released = is_before(now, woke) ? now : now - (now - woke) % vm->deadline;
	if (arrival) {
		/* frames of the guest must not wait for packets that came later */
		if (role != VHOST_WORKER || is_before(arrival, released))
			released = arrival;
	} else if (role != VHOST_WORKER && done) {
		/* an answer must not give the vCPU an earlier deadline than the packet did */
		answered = s->arrivals[(done - 1) % PENDING_MAX];
		if (is_before(released, answered) && !is_before(now, answered))
			released = answered;
	}
	place_released(vm_index, vm, s, released, now, place);
	return 0;
}

static __always_inline struct place place_of(const struct thread *thread, u64 now)
{
	struct place place = {.deadline = NO_DEADLINE};

	find_place(thread->vm, thread->role, thread->woke_at, now, &place);
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
	u64 half = place->usable / 2, granted = least(place->usable, half > MIN_GRANT ? half : MIN_GRANT);

	if (!s)
		return MIN_SLICE;
	granted = least(granted, most);
	t->granted = granted;
	t->granted_in = place->slot;
	__sync_fetch_and_add(&s->used[place->slot % SLOTS], granted);
	if (!place->asked)
		__sync_fetch_and_add(&s->unasked[place->slot % SLOTS], granted);
	return granted;
}

/* What a thread took longer than granted is charged to the slot that it was granted in, as far as there was
 * more left for that, and the rest to later slots: it is not forgotten with that slot. So a release never
 * gets more than the budget and what one turn took too long, however many turns it had. */
static __always_inline void charge_over(s64 *slot, s64 *debt, s64 left, u64 over)
{
	u64 own = left > 0 ? least(over, left) : 0;

	if (own)
		__sync_fetch_and_add(slot, own);
	if (over > own)
		__sync_fetch_and_add(debt, over - own);
}

/* A thread that went before others has run for so long. `timer_late`: the timer that ends its turn fired more
 * than OVERRUN late. */
static __always_inline void use(u32 vm_index, struct vm_state *s, struct task *t, u64 ran, bool timer_late)
{
	/* what was granted long ago is forgotten, or with another period */
	s64 since = s->slot - t->granted_in;
	bool known = since > -SLOTS_PER_PERIOD && since < SLOTS - 1;
	u64 back = t->granted > ran ? t->granted - ran : 0, over = ran > t->granted ? ran - t->granted : 0;
	s64 *used = &s->used[t->granted_in % SLOTS], *unasked = &s->unasked[t->granted_in % SLOTS];
	struct left left = {};
	u64 from;

	if (t->granted) {
		__sync_fetch_and_add(&s->turns, 1);
		if (over > OVERRUN) {
			__sync_fetch_and_add(&s->overruns, 1);
			if (timer_late)
				__sync_fetch_and_add(&s->late_timers, 1);
		}
	}
	t->granted = 0;
	if (known && back) {
		__sync_fetch_and_sub(used, back);
		if (!t->asked)
			__sync_fetch_and_sub(unasked, back);
	}
	if (over) {
		/* as it is now: a slot that began meanwhile may have paid with it */
		if (known)
			find_left(vm_index, t->granted_in, s->slot, &left);
		from = known ? t->granted_in : s->slot;
		if (is_before(s->owed_from, from))
			s->owed_from = from;
		charge_over(used, &s->debt, left.all, over);
		if (!t->asked)
			charge_over(unasked, &s->unasked_debt, left.unasked, over);
	}
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
