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
	return bpf_map_lookup_elem(&clocks, &tid);
}

/* Adds the time since the last change to the state that ends; under the lock. */
static __always_inline void clock_settle(struct clock *c, u64 now)
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
	clock_settle(c, now);
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
	if (state < STATES)
		spent[state] += current;
	return state;
}

static __always_inline u8 clock_read_of(const u32 *tid, u64 now, u64 *spent)
{
	struct clock *c = tid ? bpf_map_lookup_elem(&clocks, tid) : NULL;
	int i;

	if (c)
		return clock_read(c, now, spent);
	for (i = 0; i < STATES; i++)
		spent[i] = 0;
	return STATE_UNKNOWN;
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

		bpf_map_update_elem(&clocks, &tid, &fresh, BPF_NOEXIST);
		c = clock_of(tid);
	}
	return c;
}

#endif
