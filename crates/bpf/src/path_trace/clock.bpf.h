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
	if (slot >> 32 != tid || slot == ENDED) {
		found = bpf_map_lookup_elem(&collisions, &tid);
		if (!found)
			return NULL;
		index = *found;
	}
	return bpf_map_lookup_elem(&thread_clocks, &index);
}

/* The clock of a reference, unless its thread has ended. */
static __always_inline struct clock *clock_at(const struct clock_ref *ref)
{
	struct clock *c;
	u32 index;

	if (!ref)
		return NULL;
	index = ref->index;
	c = bpf_map_lookup_elem(&thread_clocks, &index);
	return c && c->own.generation == ref->generation ? c : NULL;
}

/* Whether a reference is one to this clock. */
static __always_inline bool refers_to(const struct clock_ref *ref, const struct clock *c)
{
	return ref && ref->index == c->own.index && ref->generation == c->own.generation;
}

/* Gives the current thread, which has no clock, a copy of `fresh`. Only the thread itself may do this. */
static __always_inline struct clock *clock_new(u32 tid, struct clock *fresh)
{
	u64 *slot = &lookup.by_tid[tid % LOOKUP_SLOTS], mine;
	struct clock *c;
	u32 index;

	if (lookup.used < MAX_CLOCKS) { /* checked first, so that the count cannot wrap around */
		index = __sync_fetch_and_add(&lookup.used, 1);
	} else if (bpf_map_pop_elem(&free_clocks, &index)) {
		return NULL;
	}
	c = bpf_map_lookup_elem(&thread_clocks, &index);
	if (!c)
		return NULL;
	/* 0 is the generation of no reference */
	fresh->own.generation = c->own.generation ? c->own.generation : 1;
	fresh->own.index = index;
	fresh->tid = tid;
	if (bpf_map_update_elem(&thread_clocks, &index, fresh, BPF_ANY))
		return NULL;
	mine = (u64)tid << 32 | index;
	if (__sync_val_compare_and_swap(slot, 0, mine) &&
	    __sync_val_compare_and_swap(slot, ENDED, mine) != ENDED)
		bpf_map_update_elem(&collisions, &tid, &index, BPF_ANY);
	return c;
}

/* The next thread that has this clock has not lost a CPU yet. */
static __always_inline void forget_starts(u32 index)
{
	struct starts *s = bpf_map_lookup_elem(&thread_starts, &index);

	if (s)
		s->left = 0;
}

/* A thread ends: its id may be that of another one from now on. */
static __always_inline void clock_end(u32 tid)
{
	u64 *slot = &lookup.by_tid[tid % LOOKUP_SLOTS], there = *slot;
	struct clock *c = clock_of(tid);
	struct vcpu_key key;
	u32 index;

	if (!c)
		return;
	index = c->own.index;
	forget_starts(index);
	key.vm = c->vm;
	key.vcpu = c->vcpu;
	__sync_fetch_and_add(&c->own.generation, 1);
	if (there >> 32 == tid)
		__sync_val_compare_and_swap(slot, there, ENDED);
	else
		bpf_map_delete_elem(&collisions, &tid);
	if (c->actor == ACTOR_VCPU)
		bpf_map_delete_elem(&vcpus, &key);
	bpf_map_push_elem(&free_clocks, &index, BPF_ANY);
}

/*
 * The thread has waited for `ns` while `runs_instead` had its CPU. Of all threads that have it while a thread
 * waits, one is remembered, each with a probability in proportion to its time (reservoir sampling): over
 * many requests each is named as often as it deserves. To remember the last one would favour threads that run
 * briefly, because the scheduler chooses anew when they sleep.
 */
static __always_inline void clock_waited(struct clock *c, u64 ns)
{
	u64 most = 1ULL << 40; /* 18 minutes, so that the product below does not overflow */
	u32 x = c->random ? c->random : 0x9e3779b9;

	x ^= x << 13; /* xorshift: no helper may be called while the lock is held */
	x ^= x >> 17;
	x ^= x << 5;
	c->random = x;
	c->waited += ns;
	if (c->waited >= most)
		c->waited = most - 1;
	if (c->waited == ns || x * (c->waited >> 8) >> 32 < ns >> 8)
		c->preempted_by = c->runs_instead;
}

/* Adds the time since the last change to the state that ends. The caller holds the lock. */
static __always_inline void clock_account(struct clock *c, u64 now)
{
	u64 ns = now - c->since, lasted = c->lasted + ns;
	u32 state = c->state;

	if (now <= c->since) /* the clocks of two CPUs may differ a little */
		return;
	if (state < STATES)
		c->spent[state] += ns;
	/* A worker that blocks for a page of the guest while it copies is not idle: see switched(). (Not
	 * another index above: the verifier of Linux 6.1 loses its bound.) */
	if (state == STATE_ASLEEP && c->holds == HOLDS_PACKETS) {
		c->spent[STATE_ASLEEP] -= ns;
		c->spent[STATE_RUN] += ns;
	}
	c->since = now;
	c->lasted = lasted < ~0U ? lasted : ~0U;
	if (state == STATE_READY)
		clock_waited(c, ns);
}

/* It comes into a state, and is accounted for until then. The caller holds the lock. */
static __always_inline void clock_into(struct clock *c, u8 state)
{
	c->lasted = 0;
	c->state = state;
}

static __always_inline void clock_set(struct clock *c, u64 now, u8 state)
{
	bpf_spin_lock(&c->lock);
	clock_account(c, now);
	clock_into(c, state);
	bpf_spin_unlock(&c->lock);
}

static __always_inline u8 clock_copy(struct clock *c, u64 now, u64 *spent, bool names)
{
	u8 state;
	int i;

	bpf_spin_lock(&c->lock);
	clock_account(c, now);
	for (i = 0; i < STATES; i++)
		spent[i] = c->spent[i];
	state = c->state;
	if (names)
		c->waited = 0;
	bpf_spin_unlock(&c->lock);
	return state;
}

/*
 * Copies the clock as of now for a record that names who had the CPU; returns the state it is in. Who is
 * named is chosen anew after each of these readings: the analysis knows which waits are between two of them.
 */
static __always_inline u8 clock_read(struct clock *c, u64 now, u64 *spent)
{
	return clock_copy(c, now, spent, true);
}

/*
 * Waits shorter than this get no record of their own: the next one covers them. So there are no more than
 * 1,024 of these records of a thread in 67 ms, as of states (STATES_AT_ONCE), however many packets come to it
 * while it waits. ns; 65.5 us
 */
#define TELL_WAIT (1 << 16)

/*
 * Whoever had the CPU of a thread that has waited for it is told in a record of its own, and who is named is
 * chosen anew: a request's wait begins where another record has the same clock. These records fill at most
 * half of the buffer; what has no place is part of the next wait that is named. Their time is that to which
 * the clock is accounted for, which another CPU may have moved on since the caller read the time: so they are
 * in the order of their clocks. Not inlined, for the verifier's sake.
 */
__noinline int tell_wait(u32 tid)
{
	struct clock *c = clock_of(tid);
	struct rec_wait *r;
	u64 waited;
	int i;

	if (!c || bpf_ringbuf_query(&records, BPF_RB_AVAIL_DATA) >
		      bpf_ringbuf_query(&records, BPF_RB_RING_SIZE) / 2)
		return 0;
	r = bpf_ringbuf_reserve(&records, sizeof(*r), 0);
	if (!r)
		return 0;
	fill_head(&r->head, 0, REC_WAIT, c->actor, 0);
	r->tid = tid;
	r->vm = c->vm;
	r->vcpu = c->vcpu;
	__builtin_memset(r->pad, 0, sizeof(r->pad));
	/* at once into the record: callers leave little room on the stack */
	bpf_spin_lock(&c->lock);
	waited = c->waited;
	r->head.ts = c->since;
	r->state = c->state;
	r->preempted_by = c->preempted_by;
	for (i = 0; i < STATES; i++)
		r->clock[i] = c->spent[i];
	c->waited = 0;
	bpf_spin_unlock(&c->lock);
	if (!waited || r->state >= STATES) {
		bpf_ringbuf_discard(r, 0);
		return 0;
	}
	submit(r);
	return 1;
}

/*
 * As clock_read(), for a record that names nobody. A request's wait may begin with this record, so what the
 * thread has waited so far is told first, if it is TELL_WAIT or longer.
 */
static __always_inline u8 clock_peek(struct clock *c, u64 now, u64 *spent)
{
	u8 state = clock_copy(c, now, spent, false);

	if (c->waited >= TELL_WAIT)
		tell_wait(c->tid);
	return state;
}

/*
 * The time in guest mode as of now. Read without the lock, which the vCPU's own CPU needs: while the state
 * changes it may be wrong, and then differs from what is read later.
 */
static __always_inline u64 clock_guest_ns(const struct clock *c, u64 now)
{
	u64 since = *(volatile u64 *)&c->since, ns = *(volatile u64 *)&c->spent[STATE_GUEST];

	return *(volatile u8 *)&c->state == STATE_GUEST && now > since ? ns + (now - since) : ns;
}

/* As clock_peek(), or clock_read() if the record names who had the CPU; zeros if there is no clock. */
static __always_inline u8 clock_read_or_zeros(struct clock *c, u64 now, u64 *spent, bool names)
{
	int i;

	if (c)
		return names ? clock_read(c, now, spent) : clock_peek(c, now, spent);
	for (i = 0; i < STATES; i++)
		spent[i] = 0;
	return STATE_UNKNOWN;
}

/*
 * Whether a change of a clock's state is told: that of a vCPU whose guest reports events itself, into or out
 * of a halt (asleep, polling) or a wait for a CPU. Between guest mode and exits there are too many.
 */
static __always_inline bool is_told(const struct clock *c, u8 before, u8 after)
{
	before = before == STATE_RUN ? STATE_GUEST : before;
	after = after == STATE_RUN ? STATE_GUEST : after;
	return before != after && c->actor == ACTOR_VCPU && hinted(c->vm, HINT_STATES);
}

/*
 * Reports what a vCPU does, with its clock as of the last change: so the clocks of two records in a row add
 * up to the time between them, and show if a record in between is missing. So none that is left out can
 * mislead: there are STATES_AT_ONCE in each span, and they fill at most half of the buffer, so that they cost
 * no other record its place. Who reads them counts what is missing. Not inlined, for the verifier's sake; the
 * caller does not hold the lock. If the state changes again in between, both report the later one.
 */
__noinline int tell_state(u32 tid)
{
	struct clock *c = clock_of(tid);
	u64 spent[STATES], changed;
	struct rec_state *r;
	u32 preempted_by, lasted;
	bool has_room, told;
	u8 state;
	int i;

	if (!c)
		return 0;
	has_room = bpf_ringbuf_query(&records, BPF_RB_AVAIL_DATA) <=
		   bpf_ringbuf_query(&records, BPF_RB_RING_SIZE) / 2;
	bpf_spin_lock(&c->lock);
	lasted = c->lasted;
	changed = c->since - lasted;
	state = c->state;
	preempted_by = c->preempted_by;
	for (i = 0; i < STATES; i++)
		spent[i] = c->spent[i];
	if (changed >> 26 != c->told_at >> 26)
		c->told = 0;
	c->told_at = changed;
	c->told += 1;
	told = has_room && c->told <= STATES_AT_ONCE && state < STATES;
	/* who is named for a wait that goes on is chosen among those of the rest of it */
	if (told)
		c->waited = 0;
	bpf_spin_unlock(&c->lock);
	if (!told)
		return 0;
	r = bpf_ringbuf_reserve(&records, sizeof(*r), 0);
	if (!r)
		return 0;
	fill_head(&r->head, changed, REC_STATE, 0, 0);
	r->vm = c->vm;
	r->vcpu = c->vcpu;
	r->index = c->index < NOT_KNOWN ? c->index : NOT_KNOWN;
	r->preempted_by = preempted_by;
	r->state = state;
	/* As of the change: a reading in between has added what the state has lasted since. */
	for (i = 0; i < STATES; i++)
		r->clock[i] = i == state ? spent[i] - lasted : spent[i];
	submit(r);
	return 1;
}

/*
 * A record of a vCPU's state is made after this time at the latest while it exits and enters, and an exit
 * that takes longer than this has a record of its own beginning. ns, 1.05 ms
 */
#define TELL_AFTER (1 << 20)

/*
 * The state of a vCPU is about to change. Until its next record it is not known how much of the time since
 * the last one was exits: the analysis spreads them evenly. That would be wrong for a long exit, which
 * therefore has a record of its beginning.
 */
/* Read without the lock: a reading by another CPU in between may hide a beginning, or have it told twice. */
static __always_inline void tell_long_exit(const struct clock *c, u32 tid, u64 now)
{
	u64 changed = c->since - c->lasted;

	if (c->state == STATE_RUN && now > changed + TELL_AFTER && changed != c->told_at &&
	    c->actor == ACTOR_VCPU && hinted(c->vm, HINT_STATES))
		tell_state(tid);
}

/* A vCPU enters guest mode. */
static __always_inline void clock_enters(struct clock *c, u32 tid, u32 vm, u64 now)
{
	u8 before = c->state;
	bool reports = hinted(vm, HINT_STATES);

	tell_long_exit(c, tid, now);
	clock_set(c, now, STATE_GUEST);
	if (is_told(c, before, STATE_GUEST) || (reports && now - c->told_at > TELL_AFTER))
		tell_state(tid);
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
