/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What scx_vcpu and its Rust half share; the Rust types are generated from this. Times are in ns of
 * CLOCK_MONOTONIC.
 */
#ifndef TEIJI_SCX_VCPU_INTF_H
#define TEIJI_SCX_VCPU_INTF_H

enum vcpu_limits {
	MAX_CPUS = 1024,
	MAX_VMS = 64,	   /* real-time VMs */
	MAX_THREADS = 256, /* vCPUs and vhost workers of these */
	PENDING_MAX = 64,  /* packets of a VM whose arrivals are kept */
	SLOTS =
	    64, /* of which a VM's use of its budget is kept: releases of two periods, and the one before */
	LATENCIES = 32, /* of a histogram; number n: from 2^n ns on */
};

/* What guarantees are calculated with, too (crates/control); times in ns. */
enum vcpu_figures {
	SLOTS_PER_PERIOD = 16,
	MIN_SLICE = 50000, /* shorter ones cost more than they divide */
	/* Threads go before others for at most EDF_PER_OTHERS times as long as others run, and for no longer
	 * at a time than corresponds to MAX_OWED. */
	MAX_OWED = 5000000,
	EDF_PER_OTHERS = 9,
};

/* What a thread of a real-time VM does. Of two with one deadline the lower goes first. */
enum thread_role {
	VHOST_WORKER,
	VCPU,
};

/* Written by processes. */
struct vm_settings {
	u64 deadline; /* from a packet's arrival at a tap of the VM, or a thread's wake-up */
	u64 period;   /* of the budget */
	u64 budget; /* CPU time in each period for which the VM goes before others (a policy's `runtime`); 0:
		       the VM is not used */
};

struct vm_state {
	u64 arrivals[PENDING_MAX]; /* by number of the packet */
	u64 arrived;		   /* packets that are or were pending */
	u64 done;		   /* of these, those that are no longer pending */
	u64 late;		   /* of these, those up to the last one that was found to be late */
	u64 slot;		   /* the latest one, by number */
	/* of the budget, by the slot of the release (deadline.bpf.h), with what running threads were granted
	 */
	s64 used[SLOTS];
	s64 unasked[SLOTS]; /* of this, without a packet */
	s64 debt;	  /* what turns took longer than granted, and later slots have not been charged yet */
	s64 unasked_debt; /* of this, without a packet */
	u64 owed_from;	  /* the first slot that may be charged */
	u64 used_up;	  /* when it last was found to be, for the first time in a period */
	u64 awake;	  /* its threads that do not sleep */
	u64 woke_at;	  /* when the first of these woke up */
	/* since the scheduler was loaded: */
	u64 packets;
	u64 edf_time;	 /* CPU time before others */
	u64 fair_time;	 /* CPU time by weight */
	u64 exhausted;	 /* periods in which the budget was used up */
	u64 turns;	 /* before others */
	u64 overruns;	 /* of these, those that were longer than granted by more than OVERRUN */
	u64 late_timers; /* of the overruns, those whose timer fired more than OVERRUN late */
	u64 expired;	 /* packets that were pending too long */
};

struct thread {
	u64 vtime; /* in the fair queue of its CPU */
	u64 woke_at;
	u64 runnable_at; /* when it became runnable; 0: it is not or runs */
	u32 pid;	 /* thread id; 0: the slot is free */
	u32 vm;
	u32 role; /* enum thread_role */
	u32 cpu;  /* on which it was last queued or ran */
	u32 awake;
	u32 pad;
	u64 latencies[LATENCIES]; /* from runnable to running */
};

/* A tap. */
struct port {
	u64 netns; /* cookie */
	u32 ifindex;
	u32 pad;
};

struct cpu_state {
	u64 vnow;    /* virtual time of the fair queue */
	u64 load;    /* sum of the weights of the runnable threads of the fair class that belong to the CPU */
	u64 vm_load; /* the same of the threads of real-time VMs, some of which go before others */
	u64 balanced;  /* when its load was last compared with others */
	u64 kept;      /* when another CPU could not take what is queued for it */
	u64 looked;    /* when its queue was last looked at for threads that wait too long */
	u64 edf_time;  /* since then, of threads before others */
	u64 edf_share; /* of its time, of late, in 1/SHARE_ALL */
	u64 owed;      /* to others, as threads went before them; less what others had, or left unused */
	/* what runs, or ran last: */
	u64 started; /* when it began or was last charged; when the last one stopped */
	u64 vtime;
	u64 until;	   /* its turn has to end then; 0: with its slice */
	u64 again;	   /* a thread that waits for this CPU may have a budget again then; 0: never */
	u64 timer_at;	   /* the timer of turns ends then; 0: it is not set */
	u32 slot;	   /* of a real-time VM's thread, plus 1; 0: another */
	u32 weight;	   /* of another; 0: the CPU is idle */
	u32 others_turn;   /* until they have what is owed to them */
	u32 online;	   /* it has chosen a thread: one that is offline does not */
	u32 timer_late;	   /* the timer that ends this turn fired more than OVERRUN late */
	u32 before_others; /* it is a turn before others */
};

/* Why the scheduler ended. */
struct exit_info {
	u32 kind; /* enum scx_exit_kind of the kernel; 0: it runs */
	u32 pad;
	s64 code;
	char reason[64];
	char message[192];
};

/* What `assign` is given: a thread of a VM. */
struct assignment {
	u32 pid;
	u32 vm;
	u32 role;
	u32 slot;	/* a free one; not used if the thread has one already */
	u64 start_tick; /* of the thread, as /proc says; another one may have got its number meanwhile */
};

#endif
