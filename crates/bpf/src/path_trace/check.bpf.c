// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Lets tests run the packet code of path_trace on generated frames (bpf_prog_run on check(), with the frame
 * in the map), and its clock code on generated threads. Not part of the product.
 */
#include "kernel.h"
#include "intf.h"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

#include "maps.bpf.h"
#include "clock.bpf.h"
#include "packet.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct frame {
	u64 data; /* where bytes is, as a number: the verifier does not follow what comes out of memory */
	u64 fingerprint;
	u64 key;
	u32 len;
	u32 to_guest;
	u8 bytes[2048];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct frame);
} frames SEC(".maps");

/* Returns whether the frame is identified and passes the filter. */
SEC("syscall")
int check(void *ctx)
{
	struct packet p = {};
	struct frame *f;
	u32 zero = 0;
	const unsigned char *data;

	f = bpf_map_lookup_elem(&frames, &zero);
	if (!f)
		return -1;
	f->data = (u64)f->bytes;
	barrier();
	data = (const unsigned char *)*(volatile u64 *)&f->data;
	if (!parse(data, data + f->len, true, f->to_guest, &p))
		return 0;
	f->fingerprint = p.fingerprint;
	f->key = p.key;
	return 1;
}

struct thread {
	u32 tid;
	u32 vcpu;
};

/* Returns one more than the vCPU of the thread's clock; 0 if the thread has no clock. */
SEC("syscall")
int find(struct thread *t)
{
	struct clock *c = clock_of(t->tid);

	return c ? c->vcpu + 1 : 0;
}

/* Gives a thread that has none a clock, and returns what find() does. */
SEC("syscall")
int meet(struct thread *t)
{
	struct clock fresh = {.vcpu = t->vcpu};
	struct clock *c = clock_new(t->tid, &fresh);

	return c ? c->vcpu + 1 : 0;
}
