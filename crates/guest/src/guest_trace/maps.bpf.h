/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What guest_trace keeps: the ring buffer of records, and its maps. All are bounded; the maps of packets and
 * threads replace the entry that was used least recently.
 */
#ifndef TEIJI_GUEST_MAPS_BPF_H
#define TEIJI_GUEST_MAPS_BPF_H

/* Names the record types in the object's BTF so that the Rust half can be generated. */
struct {
	struct guest_received received;
	struct guest_queued queued;
	struct guest_read read;
	struct guest_sent sent;
	struct guest_thread thread;
	struct guest_matched matched;
	enum role role;
	enum guest_record_type record_type;
	enum end end;
	enum direction direction;
	enum matching matching;
	enum counter counter;
} layouts SEC(".data.layouts");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 21); /* bytes */
} records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, u32);
	__type(value, u64);
} counters SEC(".maps");

/* A packet in a socket's queue. */
struct queued {
	u64 print;
	u64 at; /* when it came there */
};

/* By the address of the skb. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u64);
	__type(value, struct queued);
} queued SEC(".maps");

/* The first segment in the queue of a socket of TCP of which nothing has been read. */
struct unread {
	struct queued queued;
	u32 seq;
	u32 pad;
};

/* By the address of the struct sock. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u64);
	__type(value, struct unread);
} unread SEC(".maps");

struct cpu {
	u64 irq;	      /* when the interrupt came that is being handled; 0: none is */
	u64 last_irq;	      /* when the last one came */
	u64 previous_irq;     /* and that before it */
	u64 enqueues;	      /* address of the packet that is being put on a socket's queue; 0: none is */
	struct queued queued; /* the same packet */
	u32 backlog;	      /* packets that are in the queue */
	u32 softirq;	      /* one is being handled */
	u32 freed_sent;	      /* a driver that is polled has freed what it has sent */
	u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

/* The last time that a driver asked to be polled. */
struct interrupt {
	u64 at;	      /* when the interrupt came in which it asked; 0: it asked while it was polled */
	u64 previous; /* when that CPU was interrupted before that */
	/* only if requests are matched: */
	u64 last;	/* when the driver handed its last packet to the stack since then */
	u64 first_skb;	/* the packet that the interrupt was certainly for, by its address; 0: not known */
	u32 received;	/* packets that the driver has handed to the stack since then */
	u8 maybe_stale; /* see maybe_stale() */
	u8 napi_done;	/* the driver has found no more, and is not polled until it asks again */
	u32 cpu;
	u32 pad;
};

/* By the id of the NAPI instance. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct interrupt);
} interrupts SEC(".maps");

struct sleep {
	u64 since; /* when it began; 0: it is not known */
	u64 woken;
	u64 running; /* when the thread first got a CPU after that */
	u32 woken_by;
	u32 pad;
};

struct thread {
	struct sleep last;
	struct sleep for_packet; /* the last one that a packet's coming has ended */
	u64 began;		 /* when it began to send; 0: it does not */
	u64 slept;		 /* when it last went to sleep; 0: it is not known */
	u32 introduced;		 /* its record has been written */
	u32 pad;
};

/* By thread id. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, u32);
	__type(value, struct thread);
} threads SEC(".maps");

struct birth {
	u64 at;
	u32 parent;
	u32 pad;
};

/* Threads that were created during the trace, by thread id. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, u32);
	__type(value, struct birth);
} births SEC(".maps");

#define MARKS 65536

/* At a thread id modulo MARKS: whether such a thread was woken by a packet, or has read one. */
u8 marks[MARKS];

static __always_inline void count(u32 which)
{
	u64 *n = bpf_map_lookup_elem(&counters, &which);

	if (n)
		*n += 1;
}

static __always_inline struct cpu *this_cpu(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&cpus, &zero);
}

static __always_inline void *reserve(u64 size)
{
	void *r = bpf_ringbuf_reserve(&records, size, 0);

	if (!r)
		count(COUNT_LOST);
	return r;
}

/* The reader polls every few milliseconds and is not woken up. */
static __always_inline void submit(void *r)
{
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
}

#endif
