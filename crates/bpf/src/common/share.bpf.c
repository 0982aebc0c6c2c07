// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * For the test of share.rs: an object that uses the heartbeat of another one.
 *
 * By hand: bpftool prog load share.bpf.o /sys/fs/bpf/share map name heartbeat pinned \
 *	/sys/fs/bpf/teiji/edf/beat
 */
#include "../qdisc_edf/kernel.h"
#include "heartbeat.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Returns whether the heartbeat is missing. */
SEC("syscall")
int missing(void *ctx)
{
	return heartbeat_missing(bpf_ktime_get_ns());
}
