/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Clocks of threads: how long a vCPU thread or vhost worker was in each state. path_trace.bpf.c draws the
 * states.
 */
#ifndef TEIJI_CLOCK_BPF_H
#define TEIJI_CLOCK_BPF_H

static __always_inline u32 current_tid(void)
{
	return (u32)bpf_get_current_pid_tgid();
}

static __always_inline struct clock *clock_of(u32 tid)
{
	u64 slot = lookup.by_tid[tid % LOOKUP_SLOTS];
	u32 index = slot, *found;

	if (!slot)
		return NULL;
	if (slot >> 32 != tid) {
		found = bpf_map_lookup_elem(&collisions, &tid);
		if (!found)
			return NULL;
		index = *found;
	}
	return bpf_map_lookup_elem(&thread_clocks, &index);
}

/* Gives the current thread, which has no clock, a copy of `fresh`. Only the thread itself may do this. */
static __always_inline struct clock *clock_new(u32 tid, const struct clock *fresh)
{
	u32 index;

	if (lookup.used >= MAX_CLOCKS) /* checked first, so that the count cannot wrap around */
		return NULL;
	index = __sync_fetch_and_add(&lookup.used, 1);
	if (bpf_map_update_elem(&thread_clocks, &index, fresh, BPF_ANY))
		return NULL;
	if (__sync_val_compare_and_swap(&lookup.by_tid[tid % LOOKUP_SLOTS], 0, (u64)tid << 32 | index))
		bpf_map_update_elem(&collisions, &tid, &index, BPF_ANY);
	return bpf_map_lookup_elem(&thread_clocks, &index);
}

/* Adds the time since the last change to the state that ends. The caller holds the lock. */
static __always_inline void clock_account(struct clock *c, u64 now)
{
	u64 spent = now > c->since ? now - c->since : 0;
	u32 state = c->state;

	if (state < STATES)
		c->spent[state] += spent;
	c->since = now;
}

static __always_inline void clock_set(struct clock *c, u64 now, u8 state)
{
	bpf_spin_lock(&c->lock);
	clock_account(c, now);
	c->state = state;
	bpf_spin_unlock(&c->lock);
}

/* Copies the clock as of now; returns the state it is in. */
static __always_inline u8 clock_read(struct clock *c, u64 now, u64 *spent)
{
	u64 current;
	u8 state;
	int i;

	bpf_spin_lock(&c->lock);
	for (i = 0; i < STATES; i++)
		spent[i] = c->spent[i];
	state = c->state;
	current = now > c->since ? now - c->since : 0;
	bpf_spin_unlock(&c->lock);
	/* by constant indices: Linux 6.1 refuses variable ones if `spent` is on the stack */
	for (i = 0; i < STATES; i++)
		if (i == state)
			spent[i] += current;
	return state;
}

/* The same, zeros if there is no clock. */
static __always_inline u8 clock_read_or_zeros(struct clock *c, u64 now, u64 *spent)
{
	int i;

	if (c)
		return clock_read(c, now, spent);
	for (i = 0; i < STATES; i++)
		spent[i] = 0;
	return STATE_UNKNOWN;
}

static __always_inline u8 clock_read_of(const u32 *tid, u64 now, u64 *spent)
{
	return clock_read_or_zeros(tid ? clock_of(*tid) : NULL, now, spent);
}

/* The clock of the vhost worker that runs this, made when it is first met. */
static __always_inline struct clock *worker_clock(u64 now)
{
	u32 tid = current_tid();
	struct clock *c = clock_of(tid);

	if (!c) {
		struct clock fresh = {
		    .state = STATE_RUN,
		    .resume = STATE_RUN,
		    .actor = ACTOR_WORKER,
		    .since = now,
		};

		c = clock_new(tid, &fresh);
	}
	return c;
}

#endif
