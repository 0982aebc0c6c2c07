/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The agent's heartbeat, for programs whose work depends on an agent.
 *
 *   the agent writes the time ──► heartbeat ──► heartbeat_missing()
 *
 * The map is the same in every release, so that an agent can send the heartbeat for the programs of another
 * one. An object that is loaded beside another one uses its map (common/share.rs). It is mapped into the
 * agent, which so needs no privilege to send it. (No BPF_F_RDONLY_PROG: the kernel maps nothing for writing
 * that has this flag.)
 */
#ifndef TEIJI_HEARTBEAT_H
#define TEIJI_HEARTBEAT_H

enum heartbeat_time {
	HEARTBEAT_TIMEOUT = 2000000000, /* ns; without a heartbeat for so long, no agent runs */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} heartbeat SEC(".maps");

/* Whether no agent has sent a heartbeat for HEARTBEAT_TIMEOUT before `now` (CLOCK_MONOTONIC). */
static __always_inline bool heartbeat_missing(u64 now)
{
	u32 zero = 0;
	u64 *at = bpf_map_lookup_elem(&heartbeat, &zero);

	/* a heartbeat written on another CPU may be slightly ahead of this CPU's clock */
	return !at || (s64)(now - *at) > (s64)HEARTBEAT_TIMEOUT;
}

#endif
