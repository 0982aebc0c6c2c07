/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * When the turn of what runs ends. The kernel ends slices at its ticks, 4 ms apart at 250 Hz; budgets are
 * shorter than that. So each CPU has a timer, and where a turn has to end between ticks, the timer ends it.
 */
#ifndef TEIJI_SCX_VCPU_TURN_BPF_H
#define TEIJI_SCX_VCPU_TURN_BPF_H

#include "maps.bpf.h"

#define CLOCK_MONOTONIC 1

struct turn {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct turn);
} turns SEC(".maps");

static int turn_ends(void *map, int *key, struct turn *turn)
{
	u32 cpu = *key;
	struct cpu_state *c = cpu_at(cpu);
	u64 now = bpf_ktime_get_ns(), until, due;

	if (!c)
		return 0;
	until = c->until;
	due = c->timer_at;
	c->timer_at = 0;
	if (!until)
		return 0;
	if (!is_before(now, until)) {
		c->timer_late = due && is_before(due + OVERRUN, now);
		scx_bpf_kick_cpu(cpu, core_enum(scx_kick_flags, SCX_KICK_PREEMPT));
		return 0;
	}
	/* another turn has begun meanwhile */
	c->timer_at = until;
	bpf_timer_start(&turn->timer, until, BPF_F_TIMER_ABS | BPF_F_TIMER_CPU_PIN);
	return 0;
}

/* What runs on this CPU has to stop at a time, though not because its slice ends. A timer that ends before
 * starts itself anew, so it is set once for many short turns. */
static __always_inline void end_turn_at(u32 cpu, struct cpu_state *c, u64 until, u64 now)
{
	struct turn *turn = bpf_map_lookup_elem(&turns, &cpu);

	c->until = until;
	c->timer_late = 0;
	if (!turn || (c->timer_at && is_before(now, c->timer_at) && !is_before(until, c->timer_at)))
		return;
	c->timer_at = until;
	bpf_timer_start(&turn->timer, until, BPF_F_TIMER_ABS | BPF_F_TIMER_CPU_PIN);
}

static __always_inline s32 make_turn(u32 cpu)
{
	struct turn *turn = bpf_map_lookup_elem(&turns, &cpu);

	return turn ? bpf_timer_init(&turn->timer, &turns, CLOCK_MONOTONIC)
			  ?: bpf_timer_set_callback(&turn->timer, turn_ends)
		    : 0;
}

#endif
