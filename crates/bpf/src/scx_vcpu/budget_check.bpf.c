// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Lets tests run the account of budgets (deadline.bpf.h) at times that they choose, on kernels without
 * sched_ext too. Not part of the product.
 */
#include "kernel.h"
#include "intf.h"
#include "maps.bpf.h"
#include "deadline.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* A thread of the VM 0 is chosen, and runs. */
struct running {
	u64 role; /* enum thread_role */
	u64 woke;
	u64 now;
	u64 most;  /* for how long it may run in any case */
	u64 needs; /* for how long it would run */
	u64 late;  /* how late its turn ends if it needs more than it is granted */
	u64 look;  /* whether somebody looks when it has run, before it is charged */
	/* results: */
	u64 ran;      /* before others; 0: it runs by weight now */
	u64 released; /* the job that it ran */
	u64 again;    /* when it may run before others again, if it does not; 0: it does */
};

SEC("syscall")
int turn(struct running *r)
{
	u32 vm = 0;
	const struct vm_settings *settings = bpf_map_lookup_elem(&vms, &vm);
	struct vm_state *s = bpf_map_lookup_elem(&states, &vm);
	struct place place = {}, other;
	struct task t = {};
	u64 granted;

	r->ran = 0;
	if (!settings || !s)
		return 1;
	find_place(vm, r->role, r->woke, r->now, &place);
	r->again = place.again;
	if (place.deadline == NO_DEADLINE)
		return 0;
	t.asked = place.asked;
	granted = grant(vm, &t, &place, r->most);
	r->ran = r->needs > granted ? granted + r->late : r->needs;
	r->released = place.deadline - settings->deadline;
	if (r->look)
		find_place(vm, r->role, r->woke, r->now + r->ran, &other);
	use(vm, s, &t, r->ran, false);
	return 0;
}
