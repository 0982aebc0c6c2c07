/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The maps of scx_vcpu, the figures that it goes by, and what every part of it uses. */
#ifndef TEIJI_SCX_VCPU_MAPS_BPF_H
#define TEIJI_SCX_VCPU_MAPS_BPF_H

/* ns */
#define SLICE 3000000ULL	    /* of the fair class */
#define SLICES 8		    /* so many threads queued on a CPU get it; of more, each a shorter one */
#define SHORT_SLICE 500000ULL	    /* but at least this one */
#define EDF_SLICE 10000000ULL	    /* at most; less if less of the budget is left */
#define MIN_GRANT 1000000ULL	    /* of the budget; of more than twice that, half */
#define OVERRUN 500000ULL	    /* a turn that ends so late counts as late */
#define WAKE_GRANULARITY 1000000ULL /* a thread that wakes preempts one that is so far ahead of it */
#define MAX_WAIT 2000000000ULL	    /* a thread that waits for longer for those of its CPU goes before them */
#define LOOK_INTERVAL 500000000ULL  /* between two looks at who does */
#define BALANCE_INTERVAL 20000000ULL
#define KEPT_INTERVAL 1000000000ULL /* threads that are bound to a CPU are looked at so seldom */
#define JUST_ARRIVED 200000ULL /* a packet may have been queued for a worker without its being woken yet */
#define TIMEOUT_MS 10000
#define EXPIRES 8 /* deadlines after which a packet is no longer pending */

#define NO_DEADLINE (~0ULL)
#define DEFAULT_WEIGHT 100
#define MAX_WEIGHT 10000
#define SHARE_ALL 1024

/* Identifiers of queues. That of a CPU is its number. */
#define THREAD_QUEUES 0x10000ULL

#define core_enum(type, value) bpf_core_enum_value(enum type, value)

const volatile struct settings_of_host {
	u32 cpus; /* CPUs that the host may have */
	u32 pad;
} host SEC(".rodata.host") = {.cpus = 1}; /* alone there: the compiler puts tables into .rodata */

/* Names the types in the object's BTF so that the Rust half can be generated. */
struct {
	enum vcpu_limits vcpu_limits;
	enum vcpu_figures vcpu_figures;
	enum thread_role thread_role;
	struct assignment assignment;
} layouts SEC(".data.layouts");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__uint(max_entries, MAX_VMS);
	__type(key, u32);
	__type(value, struct vm_settings);
} vms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__uint(max_entries, 1024);
	__type(key, struct port);
	__type(value, u32); /* of a VM */
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VMS);
	__type(key, u32);
	__type(value, struct vm_state);
} states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_THREADS);
	__type(key, u32);
	__type(value, struct thread);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct cpu_state);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct exit_info);
} ended SEC(".maps");

/* What is known of every task. */
struct task {
	u32 slot; /* plus 1; 0: not of a real-time VM */
	u32 cpu;  /* whose virtual time its vtime is of, and whose load it is part of while it is runnable */
	u32 load; /* what it is part of that load with; 0: it is not */
	u8 before_others; /* since it runs; it is charged for that */
	u8 asked;	  /* and may use the whole budget */
	u8 fresh;	  /* it was never queued and never ran */
	u8 claimed;	  /* `select_cpu` has found an idle CPU for it */
	u32 dead;	  /* it gets no slot any more */
	u64 queued_at;	  /* in a fair queue */
	u64 granted;	  /* of the budget, since it runs */
	u64 granted_in;	  /* the slot that this is charged to */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task);
} tasks SEC(".maps");

/*
 * Threads of real-time VMs that are runnable, by slot: their queues are looked at. A bit is set before its
 * thread is queued and stays until it sleeps, as a thread gets into its queue only after `enqueue` has
 * returned: a bit that were cleared when the thread is taken from the queue could be cleared after the thread
 * was queued again.
 */
u64 runnable_threads[MAX_THREADS / 64];

/* Takes the lowest bit that is set. */
static __always_inline u32 take_bit(u64 *bits)
{
	/* the bits below it, counted */
	u32 lowest = __builtin_popcountll((*bits & -*bits) - 1) % 64;

	*bits &= *bits - 1;
	return lowest;
}

static __always_inline void mark(u32 slot)
{
	__sync_fetch_and_or(&runnable_threads[slot / 64 % (MAX_THREADS / 64)], 1ULL << slot % 64);
}

static __always_inline void unmark(u32 slot)
{
	__sync_fetch_and_and(&runnable_threads[slot / 64 % (MAX_THREADS / 64)], ~(1ULL << slot % 64));
}

static __always_inline struct task *task_of(struct task_struct *p)
{
	return bpf_task_storage_get(&tasks, p, NULL, 0);
}

static __always_inline struct cpu_state *cpu_at(u32 cpu)
{
	return bpf_map_lookup_elem(&cpus, &cpu);
}

static __always_inline struct thread *thread_at(u32 slot)
{
	return bpf_map_lookup_elem(&threads, &slot);
}

static __always_inline bool is_before(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

static __always_inline u64 least(u64 a, u64 b)
{
	return a < b ? a : b;
}

static __always_inline bool insert(struct task_struct *p, u64 queue, u64 slice, u64 vtime, u64 enq_flags)
{
	struct scx_bpf_dsq_insert_vtime_args args = {
	    .dsq_id = queue,
	    .slice = slice,
	    .vtime = vtime,
	    .enq_flags = enq_flags,
	};

	return __scx_bpf_dsq_insert_vtime(p, &args);
}

static __always_inline bool move_to_local(u64 queue)
{
	return bpf_ksym_exists(scx_bpf_dsq_move_to_local___v2___kernel)
		   ? scx_bpf_dsq_move_to_local___v2___kernel(queue, 0)
		   : scx_bpf_dsq_move_to_local___v1(queue);
}

static __always_inline void set_slice(struct task_struct *p, u64 slice)
{
	scx_bpf_task_set_slice(p, slice < MIN_SLICE ? MIN_SLICE : slice);
}

#endif
