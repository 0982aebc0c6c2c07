/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the kernel half and the Rust half of the census share. */
#ifndef TEIJI_CENSUS_INTF_H
#define TEIJI_CENSUS_INTF_H

#include <linux/types.h>

#define MAX_CENSUS_THREADS 16384
/* Kinds of exits: model::census::Exit says which. */
#define EXITS 11
/* Exit codes of AMD are up to 0x403, those of Intel up to some 80; higher ones are of the last kind. */
#define EXIT_CODES 1088

/* How often something was done, and how long that took in all. */
struct done {
	__u64 times;
	__u64 ns;
};

/* What a vCPU thread is doing since `since`. */
enum doing {
	DOING_UNKNOWN,
	DOING_GUEST, /* in guest mode */
	DOING_EXIT,  /* out of it */
	DOING_HALT,  /* out of it, as the guest has halted it: polls, or sleeps */
	/* a vhost worker: */
	DOING_RX,
	DOING_TX
};

/*
 * A thread. It alone writes here, but for user space when the entry is made. Times are ns of CLOCK_MONOTONIC.
 */
struct census_thread {
	__u64 since;
	__u32 doing;
	__u32 exit; /* the kind of the last exit */
	__u64 left; /* when it left guest mode */
	__u64 halted_since_exit;
	struct done guest;
	struct done halted;
	struct done polled;	  /* of `halted`: those that ended while it polled */
	struct done exits[EXITS]; /* without `halted` */
	struct done rx;		  /* vhost worker: handle_rx */
	struct done tx;		  /* handle_tx */
};

struct census_settings {
	__u8 kinds_amd[EXIT_CODES];
	__u8 kinds_intel[EXIT_CODES];
};

#endif
