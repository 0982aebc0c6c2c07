// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Lets tests run the packet code of path_trace on generated frames (bpf_prog_run on check(), with the frame
 * in the map), and its clock and scheduler code on generated threads. Not part of the product.
 */
#include "kernel.h"
#include "intf.h"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_tracing.h>

#include "maps.bpf.h"
#include "clock.bpf.h"
#include "packet.bpf.h"
#include "dns.bpf.h"
#include "key.bpf.h"
#include "tcp.bpf.h"

/* The scheduler's probes read the time that a test says it is. */
static u64 test_time SEC(".bss.test"); /* not where the product has its data */
#define bpf_ktime_get_ns() test_time
/* and threads are woken in the context that it says */
static u8 test_context SEC(".bss.test");
#define context() test_context
#define interrupted() (test_context == CONTEXT_INTERRUPT)
#include "starts.bpf.h"
#include "threads.bpf.h"
#include "serving.bpf.h"
#include "signals.bpf.h"
#include "taking.bpf.h"
/* the task that a test says, and what is of each CPU is of all */
static u64 test_task SEC(".bss.test");
#define bpf_get_current_task() test_task
#define BPF_MAP_TYPE_PERCPU_ARRAY BPF_MAP_TYPE_ARRAY
#include "devices.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define SHARED 256 /* up to gso_size; as on the running kernel */

struct frame {
	u64 data; /* where bytes is, as a number: the verifier does not follow what comes out of memory */
	u64 fingerprint;
	u64 key;
	u32 len;
	u32 to_guest;
	u32 role;
	u16 gso_size;
	u16 segments;
	u8 bytes[2048];
	struct segment segment;
	u32 beyond; /* bytes of the frame after the linear part */
	u8 shared[SHARED];
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
	const u32 size_at = bpf_core_field_offset(struct skb_shared_info, gso_size);

	f = bpf_map_lookup_elem(&frames, &zero);
	if (!f || size_at + 2 > SHARED)
		return -1;
	__builtin_memcpy(f->shared + size_at, &f->gso_size, 2);
	f->data = (u64)f->bytes;
	barrier();
	data = (const unsigned char *)*(volatile u64 *)&f->data;
	if (!parse(data, data + f->len, AT_TAP | KEYED | (f->to_guest ? TO_GUEST : 0), &p))
		return 0;
	p.len = f->len + f->beyond;
	count_segments(&p, data + (offsetof(struct frame, shared) - offsetof(struct frame, bytes)));
	f->segments = p.segments;
	f->fingerprint = p.fingerprint;
	match_payload(&p);
	f->key = p.key;
	f->role = p.role;
	if (settings.matching == MATCH_TCP && p.proto == PROTO_TCP)
		f->role = read_segment(&p, &f->segment);
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

#define TOLD_VM 7
#define TOLD_TAP 4000000 /* index of a tap of that VM */

/* Gives a thread the clock of a vCPU. */
SEC("syscall")
int meet_vcpu(struct thread *t)
{
	struct clock fresh = {.vcpu = t->vcpu, .index = t->vcpu, .vm = TOLD_VM, .actor = ACTOR_VCPU};
	struct vcpu_key key = {.vm = TOLD_VM, .vcpu = t->vcpu};
	struct clock *c = clock_new(t->tid, &fresh);
	struct clock_ref self;

	if (!c)
		return 0;
	self = c->own;
	bpf_map_update_elem(&vcpus, &key, &self, BPF_ANY);
	return c->vcpu + 1;
}

/* Gives a thread the clock of a vhost worker, which takes a packet off a tap of the same VM. */
SEC("syscall")
int meet_worker(struct thread *t)
{
	struct clock fresh = {.vcpu = t->vcpu, .actor = ACTOR_WORKER};
	struct traced_tap tap = {.vm = TOLD_VM, .kind = TAP_OF_TUN};
	struct tap_queue q = {.ifindex = TOLD_TAP};
	struct clock *c = clock_new(t->tid, &fresh);

	if (!c)
		return 0;
	bpf_map_update_elem(&taps, &q.ifindex, &tap, BPF_ANY);
	learn_vm(c, &q);
	return c->vcpu + 1;
}

/* A thread ends. */
SEC("syscall")
int end(struct thread *t)
{
	clock_end(t->tid);
	return 0;
}

/* In the order of `Happening` in check/threads.rs. */
enum happening {
	PREEMPTED,
	WENT_TO_SLEEP,
	WOKEN,
	MIGRATED,
	PREEMPTED_BY,
	WAITED,
	WAKING,
	EXITS,
	ENTERS,
	TAKES,
	BLOCKED,
	SLEPT,
	SIGNALS,
	WRITTEN,
	SIGNALLED,
	ACCEPTED,
	SENDS,
	SIGNALS_SENT_FRAMES,
	BEGINS_ROUND,
	ENTRY_TIME,
	BEGINS_FIRST_ROUND,
	DEVICE_IRQ_BEGINS,
	DEVICE_IRQ_ENDS,
	DEVICE_INTERRUPTS_VM,
	DEVICE_INTERRUPT_ACCEPTED,
	LOOKS,
	HAS_READ,
	VMM_SIGNALS,
	VMM_SENDS
};

/* What happens to a thread, or is asked about it. */
struct event {
	u64 now;
	u32 happening;
	u32 cpu; /* of ACCEPTED: the context */
	u32 thread;
	/*
	 * PREEMPTED, WENT_TO_SLEEP, BLOCKED: the thread that gets the CPU
	 * WAKING: the context
	 * ACCEPTED, DEVICE_INTERRUPT_ACCEPTED: the vCPU
	 * DEVICE_IRQ_BEGINS: the host's number of the interrupt
	 * DEVICE_INTERRUPTS_VM: the VM
	 * LOOKS: whether there is a packet
	 * VMM_SIGNALS: the interrupt's number
	 * TAKES, SENDS, SIGNALS_SENT_FRAMES, BEGINS_ROUND, BEGINS_FIRST_ROUND: how many buffers the
	 *   worker has written by then
	 * ENTRY_TIME: how much later the interrupt was accepted than the time of the entry was read, ns
	 */
	u32 arg;
};

/* The event is the frame. Returns the answer to a question. (Not SEC("syscall"): before Linux 6.8 such a
 * program may take no lock.) */
SEC("tc")
int happen(struct __sk_buff *skb)
{
	struct tap_queue q = {.ifindex = TOLD_TAP};
	u64 spent[STATES];
	struct clock *c;
	struct event e;

	if (bpf_skb_load_bytes(skb, 0, &e, sizeof(e)))
		return -1;
	test_time = e.now;
	switch (e.happening) {
	case PREEMPTED:
	case WENT_TO_SLEEP:
	case BLOCKED:
		switched(e.cpu, e.thread, e.arg, e.happening == PREEMPTED, e.happening == WENT_TO_SLEEP);
		return 0;
	case WAKING: /* if by a thread, by the one that runs this test */
		test_context = e.arg;
		waking(e.thread);
		return 0;
	case WOKEN:
		woken(e.thread, e.cpu);
		return 0;
	case MIGRATED:
		migrated(e.thread, e.cpu);
		return 0;
	case DEVICE_IRQ_BEGINS:
		test_task = e.thread;
		device_irq_begins(e.arg);
		return 0;
	case DEVICE_IRQ_ENDS:
		test_task = e.thread;
		device_irq_ends();
		return 0;
	case DEVICE_INTERRUPTS_VM: {
		struct device_irq *d;

		test_task = e.thread;
		d = handled_here();
		if (d)
			device_interrupts_vm(d, e.arg);
		return !!d;
	}
	case DEVICE_INTERRUPT_ACCEPTED: /* with vector 38 */
		test_task = e.thread;
		return device_interrupt_accepted(e.arg, 38);
	}
	c = clock_of(e.thread);
	if (!c)
		return -1;
	if (e.happening == EXITS) {
		clock_set(c, e.now, STATE_RUN);
		return 0;
	}
	if (e.happening == ENTERS) {
		clock_enters(c, e.thread, c->vm, e.now);
		return 0;
	}
	if (e.happening == ENTRY_TIME)
		return entry_time(e.now, e.now + e.arg) - e.now;
	if (e.happening == TAKES) { /* a packet off a tap */
		packet_taken(c, e.now, &q, e.arg);
		return 0;
	}
	if (e.happening == SENDS) {
		notice_skipped_signal(c, e.arg);
		return 0;
	}
	if (e.happening == BEGINS_ROUND || e.happening == BEGINS_FIRST_ROUND) {
		round_begins(c, c->net + (e.happening == BEGINS_FIRST_ROUND), e.arg);
		return 0;
	}
	if (e.happening == SIGNALS) {
		signal_begins(c, &q);
		return 0;
	}
	if (e.happening == SIGNALS_SENT_FRAMES) {
		sent_frames_signalled(c, e.arg);
		return 0;
	}
	if (e.happening == WRITTEN) {
		if (c->signal.begun)
			packets_written(&c->signal, false);
		return 0;
	}
	if (e.happening == ACCEPTED) { /* KVM has been told to interrupt TOLD_VM */
		note_signalled_vm(c, TOLD_VM);
		test_context = e.cpu;
		interrupt_accepted(c, e.arg, 38);
		return 0;
	}
	if (e.happening == SIGNALLED) {
		signal_ends(c);
		return 0;
	}
	if (e.happening == LOOKS) {
		looks_at_tap(c, e.now, &q);
		finds(c, &q, e.arg);
		return 0;
	}
	if (e.happening == HAS_READ) {
		return has_read(c);
	}
	if (e.happening == VMM_SENDS) {
		sends_frame(c, e.now);
		c->sends = 1;
		return 0;
	}
	if (e.happening == VMM_SIGNALS) {
		thread_of_vmm_signals(c, TOLD_VM, e.arg);
		return 0;
	}
	clock_read(c, e.now, spent);
	if (e.happening == SLEPT)
		return spent[STATE_ASLEEP];
	return e.happening == PREEMPTED_BY ? c->preempted_by : spent[STATE_READY];
}

static struct learnt learnt SEC(".bss.test");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct rings);
} doorbells_rung SEC(".maps");

struct sight {
	u64 seen;
	u64 at;
	u64 since;
};

/* Of what was seen to be a queue's: whether it is known to be. */
SEC("syscall")
int learns(struct sight *seen)
{
	return learn(&learnt, seen->seen);
}

struct sending {
	u64 interrupt;
	u64 alone;
	u64 unused;
};

/* A VMM's thread sends an interrupt. */
SEC("syscall")
int others(struct sending *s)
{
	return is_of_others(TOLD_VM, s->interrupt, s->alone);
}

/* A doorbell is rung, unless it is 0. Returns the only one since a time; 0: none or several. (As for
 * happen().) */
SEC("tc")
int ring(struct __sk_buff *skb)
{
	struct sight seen;
	struct rings *r;
	u32 zero = 0;

	r = bpf_map_lookup_elem(&doorbells_rung, &zero);
	if (!r || bpf_skb_load_bytes(skb, 0, &seen, sizeof(seen)))
		return -1;
	if (seen.seen)
		note_ring(r, seen.seen, seen.at);
	return rung_since(r, seen.since);
}
