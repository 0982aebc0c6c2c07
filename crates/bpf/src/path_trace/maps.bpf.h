/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What path_trace keeps: its settings, the ring buffer of records, and its maps.
 */
#ifndef TEIJI_MAPS_BPF_H
#define TEIJI_MAPS_BPF_H

const volatile struct settings settings;

#include "../common/read.bpf.h"

/* Names the record types in the object's BTF so that the Rust half can be generated. */
struct {
	struct rec_packet packet;
	struct rec_tap tap;
	struct rec_sip sip;
	struct rec_irq irq;
	struct rec_device_irq device_irq;
	struct rec_entry entry;
	struct rec_kick kick;
	struct rec_drop drop;
	struct rec_drop_sip drop_sip;
	struct rec_print print;
	struct rec_state state;
	struct rec_start start;
	struct rec_wait wait;
	struct tap_queue tap_queue;
	struct vcpu_key vcpu_key;
	struct clock_ref clock_ref;
	struct mac mac;
	struct guest_secret guest_secret;
	struct served served;
	enum thread_state thread_state;
	enum actor actor;
	enum wake_context wake_context;
	enum record_type record_type;
	enum point point;
	enum delivery delivery;
	enum role role;
	enum end end;
	enum direction direction;
	enum matching matching;
	enum counter counter;
	enum unknown unknown;
	enum hint hint;
	enum segment_flag segment_flag;
	enum tap_kind tap_kind;
	struct traced_tap traced_tap;
} layouts SEC(".data.layouts");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 24); /* bytes; set by the Rust half */
} records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, u32);
	__type(value, u64);
} counters SEC(".maps");

/* Traced taps by ifindex. Written by the Rust half. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct traced_tap);
} taps SEC(".maps");

/* MAC addresses of traced guests. Written by the Rust half. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct mac);
	__type(value, u32);
} macs SEC(".maps");

/* Secrets of the guests that report events themselves, by tap. Written by the Rust half. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct guest_secret);
} guests SEC(".maps");

/* Process ids of traced VMMs. Written by the Rust half; a process that ends is removed at once. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u32);
} vms SEC(".maps");

/* A worker's signal to a guest. While none is being sent, only `queue` and `vm` have a meaning. */
struct signal {
	u64 begun;		/* 0: none is being sent */
	struct tap_queue queue; /* off which the worker takes packets */
	u32 vm;			/* that KVM was told to interrupt; 0: none yet */
	u8 sent;
	/* what the vCPU did that took the queue's last interrupt, when the packets were in the ring */
	u8 state;	    /* enum thread_state */
	u8 entry_requested; /* a record of its next entry was */
	u8 arrival_unknown; /* the guest wants no interrupt, and it is not known when it received the packets:
			     * see packets_written() */
	struct vcpu_key target; /* vm 0: not known */
	/* when packets_written() began: the packets were in the ring by then; 0: not yet. If arrival_unknown,
	 * when its look at the vCPU ended. If entry_requested, also the time given to request_entry() */
	u64 written;
	u64 replaced; /* the request that this one replaced: see cancel_request() */
	/* its clock then; before, only its time in guest mode when the signal began (there is no room for
	 * another field: programs have a new clock on their stack) */
	u64 clock[STATES];
};

/* What a worker holds: packets off a tap of which no signal was seen yet. */
enum holds {
	HOLDS_NOTHING,
	HOLDS_PACKETS,
	HELD_WHEN_IDLE, /* it held packets when it went idle: they were signalled and that was not seen, or
			   vhost discarded them */
};

/* What a VMM's thread has found and got since it last looked at a tap in vain, or took a packet off it. */
enum reads {
	READS_NOTHING = 1, /* it found none */
	READS_PACKET,	   /* it found one */
	READS_GOT,	   /* it got the one that it found; or has signalled one that was not seen */
	READS_UNSEEN	   /* it got one that was not seen; it may have looked in vain since */
};

struct clock {
	struct bpf_spin_lock lock; /* guards the first group */
	u8 state;		   /* enum thread_state */
	u8 resume;		   /* state to go on with when it gets a CPU */
	u8 actor;		   /* enum actor */
	u8 holds;		   /* worker: enum holds */
	u32 runs_instead;	   /* while it waits: the thread that has its CPU; 0: none, or not known */
	u32 waits_on;		   /* while it waits: the CPU */
	u32 preempted_by; /* a thread that had its CPU while it waited: see clock_waited(); 0: none */
	u32 random;
	u64 waited; /* ns that it has waited since the last reading that names a thread */
	u64 since;  /* all time before this is in `spent` */
	u64 spent[STATES];
	/* vCPU whose states are told: when it was last told, and how often in that span; see tell_state() */
	u64 told_at;
	u32 told;
	u32 lasted; /* at `since`: how long the state has lasted, ns, at most 4.3 s; guarded by the lock, too
		     */
	u32 vm;	    /* the VMM's process id; of a worker 0 until it signals or sends a frame */
	/* vCPU: KVM's number of it, VCPU_UNKNOWN until it is told or its first kvm_entry tells it */
	u32 vcpu;
	u32 index; /* vCPU: in the VM, as the VMM counts */
	struct clock_ref own;
	/* worker: the queue that it hands frames over for, while it does; ifindex 0: none */
	struct tap_queue sending;
	u64 apic; /* vCPU: its kvm_lapic, known from the first entry on; 0: none */
	u64 net;  /* worker: the vhost_net it receives for */
	/* VMM's thread that serves a tap: the queue off which it has taken packets since it slept, signalled
	 * or sent a frame; ifindex 0: none */
	struct tap_queue taking;
	u64 ready_before; /* how long it had waited for a CPU when it took the last of them */
	u64 slept_at;	  /* when it last fell asleep; 0: never seen */
	u8 reads;	  /* enum reads; 0: it has not looked at a tap */
	u8 sends;	  /* it has sent a frame since it slept */
	u16 last_used;	  /* worker: last_used() when it last took a packet */
	u32 tid;
	/* vCPU: when a worker last had packets for which no injection may be seen; see request_entry(). 0:
	 * none */
	u64 entry_requested;
	struct signal signal; /* worker: written by the worker alone */
};

/* Starts of a thread, if they are told: see starts.bpf.h. Guarded by the lock of its clock. */
struct starts {
	u64 left;  /* when it lost its CPU; 0: it has one, or that was not seen */
	u64 woken; /* since then; 0: not seen */
	u32 waker;
	u8 context; /* enum wake_context */
	u8 slept;   /* it gave its CPU up, and was not preempted */
	u8 pad[2];
	/* the last one: its number, when it was told, and how many were in that span */
	u32 nth;
	u32 told;
	u64 told_at;
};

/*
 * Clocks, in the order in which their threads were first seen, until all have been used; then those of
 * threads that have ended are used again. clock_of() finds that of a thread. The probes of the scheduler look
 * up every thread of the host, and those of KVM do so at each exit. So this is an array, and clock_of() first
 * reads one word of memory, which is 0 for almost every thread that is not traced.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CLOCKS);
	__type(key, u32);
	__type(value, struct clock);
} thread_clocks SEC(".maps");

/* With the indices of their clocks: not within them, as those are made on the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CLOCKS);
	__type(key, u32);
	__type(value, struct starts);
} thread_starts SEC(".maps");

/* Stands for a thread in struct lookup that has ended: others may still have the same place. No clock has it.
 */
#define ENDED ((u64)MAX_CLOCKS)

/* All zeros at first, except for the threads that the Rust half knows. */
struct lookup {
	u64 by_tid[LOOKUP_SLOTS]; /* at the thread id modulo LOOKUP_SLOTS: thread id << 32 | index of its
				     clock, or ENDED */
	u32 used;		  /* clocks that threads have, or have had */
	u32 pad;
} lookup;

/* Written by the Rust half. */
struct followed {
	u8 by_mac;    /* packets off the taps are the guest's by MAC address; else by flow alone */
	u8 macvtaps;  /* some of the traced taps are macvtaps */
	u8 reporting; /* of `ends` */
	u8 devices;   /* some of the traced VMs have been given NICs of the host */
	u8 pad[4];
	struct tcp_end ends[MAX_REPORTING]; /* on which guests report over TCP */
	u8 hints[LOOKUP_SLOTS]; /* at a number modulo LOOKUP_SLOTS: enum hint, or-ed, of all that have it */
} followed SEC(".bss.followed");

/* Indices of clocks whose threads have ended, the oldest first. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, MAX_CLOCKS);
	__type(value, u32);
} free_clocks SEC(".maps");

/* Thread id → index of its clock, for threads whose place in by_tid another traced thread has. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CLOCKS);
	__type(key, u32);
	__type(value, u32);
} collisions SEC(".maps");

/* vCPU → the clock of its thread. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct vcpu_key);
	__type(value, struct clock_ref);
} vcpus SEC(".maps");

/*
 * vCPU → its index in the VM, as the VMM counts, of VMs that have come since the trace began. Written by the
 * Rust half.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct vcpu_key);
	__type(value, u32);
} vcpu_indices SEC(".maps");

/* Tap queue → the clock of the worker that takes packets off it. Of taps that are gone, the Rust half removes
 * the queues from this map, the next one, `served` and `target_vcpus`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct tap_queue);
	__type(value, struct clock_ref);
} workers SEC(".maps");

/* Tap queue → the clock of the worker that sends the guest's frames. It may be another: vhost has workers for
 * single queues from Linux 6.5 on (VHOST_NEW_WORKER), which vhost-scsi offers; vhost-net does not as of 7.3.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct tap_queue);
	__type(value, struct clock_ref);
} senders SEC(".maps");

/* Tap queue that the VMM serves itself → what belongs to it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct tap_queue);
	__type(value, struct served);
} served SEC(".maps");

/* An interrupt that a VMM's thread sends. */
struct vmm_interrupt {
	u64 id;
	u32 vm; /* the VMM's process id */
	u32 pad;
};

/* How often it was sent while the thread held no packets off a tap, less how often it was the first one after
 * it took some: more than 0 for those of other devices than the tap's. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct vmm_interrupt);
	__type(value, s64);
} sent_alone SEC(".maps");

/* Doorbell → the tap queue whose it is, or has been: `served` knows. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct doorbell);
	__type(value, struct tap_queue);
} doorbells SEC(".maps");

/* The doorbells that a guest rings. */
struct rings {
	struct bpf_spin_lock lock;
	u32 pad;
	u64 last;   /* which */
	u64 at;	    /* when */
	u64 others; /* when another one was last rung */
};

/* VM by process id → its doorbells. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct rings);
} rung_by SEC(".maps");

/* Tap queue → the vCPU that last accepted its interrupt. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct tap_queue);
	__type(value, struct vcpu_key);
} target_vcpus SEC(".maps");

/* Interrupts accepted and not yet injected: the time of the latest. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct vector_key);
	__type(value, u64);
} accepted SEC(".maps");

/*
 * What runs on each CPU, and which traced threads wait for it. The scheduler's probes read this at every
 * context switch of the host, so each CPU has a cache line of its own. The kernel calls them with the CPU's
 * runqueue locked; but a thread that moves is taken off the list of one CPU and put on that of another, of
 * which only one is locked. So `waiters` and `waiting` are changed by atomic operations.
 */
struct cpu {
	u32 tid;		  /* the thread that runs, or IDLE */
	u32 waiting;		  /* used places of waiters */
	u32 waiters[MAX_WAITERS]; /* thread ids, in any order; 0: a free place */
	u8 pad[24];
} running[MAX_CPUS] SEC(".bss.running");

/* Whether it is worth looking this number up: most packets of a host are neither on a traced tap nor for a
 * traced guest. */
static __always_inline bool hinted(u32 number, u8 hint)
{
	return followed.hints[number % LOOKUP_SLOTS] & hint;
}

/*
 * Whether a device is a traced tap. Every network namespace numbers its devices by itself: a device of
 * another one may have the same number.
 */
static __always_inline bool is_tap(const struct net_device *dev, u32 ifindex)
{
	return hinted(ifindex, HINT_TAP) && bpf_map_lookup_elem(&taps, &ifindex) &&
	       READ(READ(dev, nd_net.net), ns.inum) == settings.netns;
}

/* is_tap() of a device that the verifier trusts: its fields are read without a call each. */
static __always_inline bool is_tap_here(const struct net_device *dev)
{
	u32 ifindex = dev->ifindex;

	return hinted(ifindex, HINT_TAP) && dev->nd_net.net->ns.inum == settings.netns &&
	       bpf_map_lookup_elem(&taps, &ifindex);
}

/* Whether a traced tap is a macvtap. */
static __always_inline bool is_macvtap(u32 ifindex)
{
	struct traced_tap *tap = followed.macvtaps ? bpf_map_lookup_elem(&taps, &ifindex) : NULL;

	return tap && tap->kind == TAP_MACVTAP;
}

static __always_inline void count(u32 which)
{
	u64 *n = bpf_map_lookup_elem(&counters, &which);

	if (n) /* atomic, although per CPU: if this program is preempted, another one may count here, too */
		__sync_fetch_and_add(n, 1);
}

static __always_inline void *reserve(u64 size)
{
	void *r = bpf_ringbuf_reserve(&records, size, 0);

	if (!r)
		count(COUNT_LOST);
	return r;
}

/*
 * The reader polls every few milliseconds and is not woken up: a wake-up for each record would cost more than
 * the record.
 */
static __always_inline void submit(void *r)
{
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
}

static __always_inline void fill_head(struct rec_head *h, u64 now, u8 type, u8 sub, u32 ifindex)
{
	h->ts = now;
	h->cpu = bpf_get_smp_processor_id();
	h->type = type;
	h->sub = sub;
	h->ifindex = ifindex;
}

#endif
