// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Lets tests run the arithmetic of packets that leave the queue (bpf_prog_run on leave()) at times that they
 * choose, on kernels without BPF qdiscs too. Not part of the product.
 */
#include "kernel.h"
#include "intf.h"
#include "maps.bpf.h"
#include "sent.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* A packet that leaves, and the two clocks of its link. */
struct leaving {
	u64 now;
	u64 arrival;
	u64 deadline; /* absolute */
	u64 tx;
	u64 credit;
	u64 paced;
	u64 next_free;
	u64 wire_free;
};

/* Moves both clocks on, and counts the packet for the channel 0. */
SEC("syscall")
int leave(struct leaving *l)
{
	struct queued is = {.key = l->deadline, .arrival = l->arrival, .tx = l->tx, .len = 1};

	l->next_free = next_after(l->next_free, l->credit, l->now, l->tx, l->paced);
	l->wire_free = last_bit(l->wire_free, l->now, l->tx, l->paced);
	account_sent(&is, l->wire_free);
	return 0;
}
