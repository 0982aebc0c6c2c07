/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The interface between path_trace and its Rust half. The Rust side of every type here is generated from
 * the object's BTF at build time (build.rs), so no type is written twice.
 */
#ifndef TEIJI_PATH_TRACE_INTF_H
#define TEIJI_PATH_TRACE_INTF_H

/* States of a thread's clock: the order is that of model::stage::ThreadState. */
enum thread_state {
	STATE_GUEST,
	STATE_POLL,
	STATE_ASLEEP,
	STATE_READY,
	STATE_RUN,
	STATES,
	STATE_UNKNOWN = 255, /* not seen to change its state yet */
};

enum actor {
	ACTOR_WORKER,
	ACTOR_VCPU,
};

/* In which context a thread is woken. */
enum wake_context {
	CONTEXT_UNKNOWN, /* not seen, or this kernel does not tell */
	CONTEXT_THREAD,
	CONTEXT_INTERRUPT, /* an interrupt or softirq: no thread causes it */
};

enum record_type {
	REC_PACKET,
	REC_TAP,
	REC_SIP,
	REC_IRQ,
	REC_ENTRY,
	REC_KICK,
	REC_DROP,
	REC_PRINT,
	REC_STATE,
	REC_START,
	REC_DEVICE_IRQ,
	REC_WAIT,
};

/* The order is that of model::event::Point. */
enum point {
	POINT_HOST_RX,
	POINT_TAP_ENQUEUE,
	POINT_TAP_DEQUEUE,
	POINT_TAP_SEND,
	POINT_DEV_QUEUE,
	POINT_QDISC_DEQUEUE,
	POINT_DEV_XMIT,
};

/* The order is that of model::event::Delivery. */
enum delivery {
	DELIVERY_ACCEPTED,
	DELIVERY_POSTED,
	DELIVERY_SUPPRESSED,
	DELIVERY_UNKNOWN,
};

enum role {
	ROLE_NONE, /* the packet takes no part in a request */
	ROLE_EITHER,
	ROLE_REQUEST,
	ROLE_FINAL,
	ROLE_SEGMENT, /* of TCP: see struct segment */
};

enum end {
	END_ANY,
	END_SRC,
	END_DST,
};

enum direction {
	DIR_IN = 1,
	DIR_OUT = 2,
};

enum matching {
	MATCH_NONE,
	MATCH_ECHO,
	MATCH_SIP,
	MATCH_DNS,
	MATCH_TCP,
	MATCH_KEY,
};

/* Values that stand for an unknown number. */
enum unknown {
	NOT_KNOWN = 0xffff,	   /* of 16 bits */
	VCPU_UNKNOWN = 0xffffffff, /* KVM's of a vCPU */
};

enum counter {
	COUNT_LOST,	    /* records that did not fit */
	COUNT_UNIDENTIFIED, /* packets without a fingerprint */
	COUNTERS,
};

#define MAX_NETS 2
#define MAX_PORTS 2
#define MAX_CPUS 1024
#define MAX_WAITERS 8	    /* traced threads that wait for a CPU at a time, and are told who has it */
#define HASH_WORDS 28	    /* words of a packet that take part in its fingerprint */
#define QUESTION_WORDS 66   /* words of the longest question of DNS: 255 bytes of name, type, class, id */
#define KEY_MAX 16	    /* bytes of payload that may identify a request */
#define SIP_SNAP 512	    /* bytes of a SIP message that are copied when the operator asks for SIP */
#define MAX_CLOCKS 8192	    /* traced threads */
#define STATES_AT_ONCE 1024 /* records of a vCPU's states in each span of 2^26 ns (67 ms) */
#define STARTS_AT_ONCE 1024 /* the same for the starts of a thread */
#define MAX_REPORTING 64    /* guests that report over TCP: as many as model::stream::StreamId has room for */
#define LOOKUP_SLOTS 65536  /* a power of two: see struct lookup and struct followed */

/* What a number may identify: see struct followed. */
enum hint {
	HINT_TAP = 1,	   /* traced, by ifindex */
	HINT_VM = 2,	   /* traced, by process id */
	HINT_MAC = 4,	   /* a traced guest's, by the last two bytes */
	HINT_GUEST = 8,	   /* a tap whose guest reports events itself, by ifindex */
	HINT_STATES = 16,  /* a VM whose guest does, by process id: the states of its vCPUs are told, and when
			      these and its vhost workers get a CPU */
	HINT_SERVED = 32,  /* a VM whose VMM serves a tap itself (vhost=off), by process id */
	HINT_DEVICES = 64, /* a VM that has been given NICs of the host (VFIO), by process id */
};

#define DROP_LOCATION 64 /* bytes of the name of the function that dropped a packet */

/* Flags of struct segment; the first four are those of the header. As model::event::Segment has them. */
enum segment_flag {
	SEGMENT_FIN = 0x01,
	SEGMENT_SYN = 0x02,
	SEGMENT_RST = 0x04,
	SEGMENT_ACK = 0x10,
	SEGMENT_PORT_OF_GUEST = 0x40, /* the filter has a condition on a port that the guest's satisfies */
	SEGMENT_PORT_OF_OTHER = 0x80, /* one on the port of either end that the other side's satisfies */
};

/* A segment of TCP; the key of its packet is that of the connection. */
struct segment {
	__u32 seq;
	__u32 ack;
	__u16 payload; /* bytes */
	__u8 flags;    /* enum segment_flag, or-ed */
	__u8 pad;
};

/* Starts every record. */
struct rec_head {
	__u64 ts; /* bpf_ktime_get_ns() */
	__u16 cpu;
	__u8 type; /* enum record_type */
	__u8 sub;  /* enum point or enum delivery */
	__u32 ifindex;
};

struct rec_packet {
	struct rec_head head;
	__u64 fingerprint;
	__u32 len;
	__u32 tid;
};

struct rec_tap {
	struct rec_packet packet;
	__u64 key;
	__u64 worker[STATES]; /* the worker's clock */
	__u32 preempted_by;
	__u16 depth;
	__u8 role;		/* enum role */
	__u8 worker_state;	/* STATE_UNKNOWN: the clock means nothing */
	__u16 queue;		/* the tap's, at POINT_TAP_SEND; NOT_KNOWN */
	__u16 segments;		/* that it stands for, at POINT_TAP_ENQUEUE and POINT_TAP_SEND; else 0 */
	struct segment segment; /* if the role is ROLE_SEGMENT */
};

struct rec_sip {
	struct rec_tap tap;
	__u32 snap; /* bytes of payload that follow */
	__u32 pad;
	__u8 payload[SIP_SNAP];
};

struct rec_irq {
	struct rec_head head;
	__u64 signalled;
	__u32 tid;
	__u32 vm;
	__u32 vcpu;  /* KVM's number */
	__u16 index; /* of the same vCPU in the VM; NOT_KNOWN */
	__u8 vector;
	__u8 state;
	__u64 clock[STATES];
};

/* In head.ifindex is the host's number of the interrupt, in head.sub an enum delivery. */
struct rec_device_irq {
	struct rec_head head;
	__u64 began;
	__u32 vm;
	__u32 vcpu; /* KVM's number */
	__u8 vector;
	__u8 by_hardware;
	__u8 pad[6];
};

struct rec_entry {
	struct rec_head head;
	__u64 upto;
	__u32 vm;
	__u32 preempted_by;
	__u32 vcpu;
	__u16 index;
	__u8 vector;
	__u8 pad;
	__u64 clock[STATES];
};

struct rec_kick {
	struct rec_head head;
	__u32 vm;
	__u32 preempted_by;
	__u32 vcpu;
	__u16 queue;
	__u8 worker_state;
	__u8 pad;
	__u64 clock[STATES];
	__u64 worker[STATES];
};

/* The kernel dropped a packet. */
struct rec_drop {
	struct rec_packet packet;
	__u64 key;
	__u32 why;		      /* enum skb_drop_reason of the running kernel */
	__u32 tap;		      /* that of the guest to which it was addressed, 0 if not known */
	__u8 role;		      /* enum role */
	__u8 unspecified;	      /* the kernel gave no reason */
	__u16 snap;		      /* bytes of payload that follow */
	struct segment segment;	      /* if the role is ROLE_SEGMENT */
	char location[DROP_LOCATION]; /* function+offset/size [module] */
};

struct rec_drop_sip {
	struct rec_drop drop;
	__u8 payload[SIP_SNAP];
};

/* A packet on a tap whose guest reports events itself: both ways to identify it. */
struct rec_print {
	struct rec_head head;
	__u64 fingerprint;
	__u64 print;
};

/* A vCPU thread's state and clock: see tell_state(). */
struct rec_state {
	struct rec_head head;
	__u32 vm;
	__u32 vcpu; /* KVM's number */
	__u32 preempted_by;
	__u16 index; /* of the same vCPU in the VM; NOT_KNOWN */
	__u8 state;  /* since head.ts */
	__u8 pad;
	__u64 clock[STATES];
};

/* A traced thread has got a CPU, after it had none: see tell_start(). */
struct rec_start {
	struct rec_head head; /* sub: enum actor */
	__u64 left;	      /* when it lost its CPU before */
	__u64 woken;	      /* when it was woken; 0: not seen, or it did not sleep */
	__u32 tid;
	__u32 waker; /* the thread that woke it, if `context` is CONTEXT_THREAD */
	__u32 vm;
	__u32 vcpu; /* a vCPU's: KVM's number */
	__u32 nth;  /* of the thread: if it grows by more than one, records are missing */
	__u16 pad;
	__u8 slept;   /* it gave its CPU up; else it was preempted */
	__u8 context; /* enum wake_context: in which it was woken */
};

/* A thread has waited for a CPU, and a record follows that has its clock and names nobody: see tell_wait().
 */
struct rec_wait {
	struct rec_head head; /* sub: enum actor */
	__u32 tid;
	__u32 preempted_by;
	__u32 vm;
	__u32 vcpu; /* a vCPU's: KVM's number */
	__u8 state;
	__u8 pad[7];
	__u64 clock[STATES];
};

/* A prefix of a filter; addresses in network order, IPv4 in the first word. */
struct filter_net {
	__u32 addr[4];
	__u32 mask[4];
	__u8 end;     /* enum end */
	__u8 version; /* 4 or 6 */
	__u8 pad[2];
};

struct filter_port {
	__u16 port; /* host order */
	__u8 end;   /* enum end */
	__u8 pad;
};

/* Set before the programs are loaded: the verifier removes code that these values make unreachable. */
struct settings {
	__u64 secret[2][HASH_WORDS];	    /* of the fingerprints' two halves: random, and no one else's */
	__u64 question[2 * QUESTION_WORDS]; /* the same for matched payload, one half after the other */
	__u8 version;			    /* 0: any */
	__u8 proto;			    /* IPPROTO_*, 0: any; ICMP stands for ICMPv6 as well */
	__u8 nets;
	__u8 ports;
	__u8 directions;      /* enum direction, or-ed */
	__u8 matching;	      /* enum matching */
	__u8 hand_over;	      /* dev_hard_start_xmit is probed */
	__u8 key_len;	      /* with MATCH_KEY: bytes of the key, 1 to KEY_MAX */
	__u32 netns;	      /* of the traced taps: the inode number of the network namespace */
	__u16 key_offset;     /* with MATCH_KEY: bytes of payload before the key */
	__u8 writes_are_seen; /* vhost_add_used_n is probed */
	__u8 loads;	      /* the kernel's memory can be read by loads: see read.bpf.h */
	struct filter_net net[MAX_NETS];
	struct filter_port port[MAX_PORTS];
};

/* An end of connections of TCP. */
struct tcp_end {
	__u32 addr[4]; /* in network order; IPv4 is the first word, the others are 0 */
	__u16 port;
	__u8 version; /* 4 or 6; 0: none */
	__u8 pad;
};

/* What a traced tap is. */
enum tap_kind {
	TAP_OF_TUN,
	TAP_MACVTAP,
};

/* A traced tap: whose it is, by the process id of the VMM. */
struct traced_tap {
	__u32 vm;
	__u32 kind; /* enum tap_kind */
};

/* A traced tap's queue. */
struct tap_queue {
	__u32 ifindex;
	__u32 queue;
};

/* What is thought to belong to a queue; 0: nothing. See serving.bpf.h. */
struct learnt {
	__u64 known;
	__u64 doubt; /* seen last in its place */
};

/* A tap's queue that the VMM serves itself. */
struct served {
	struct learnt interrupt;
	struct learnt doorbell;
	/* above 0: the VMM signals after it has taken the last packet; else after each. See taking.bpf.h. */
	__s8 batches;
	__u8 pad[7];
};

/* A doorbell of a guest. */
struct doorbell {
	__u64 id;
	__u32 vm; /* the VMM's process id */
	__u32 pad;
};

/*
 * Refers to the clock of a thread. Clocks are used again when their thread has ended, and so are thread ids:
 * a reference to the clock of a former thread finds nothing.
 */
struct clock_ref {
	__u32 index;	  /* of the clock */
	__u32 generation; /* how many threads have had it, this one included */
};

/* A vCPU. */
struct vcpu_key {
	__u32 vm;   /* the VMM's process id */
	__u32 vcpu; /* KVM's number: the APIC id */
};

struct vector_key {
	__u32 vm;
	__u32 vcpu;
	__u32 vector;
};

/* Of the prints of a guest's packets; no one else's, and no other guest's. */
struct guest_secret {
	__u64 words[2][HASH_WORDS];
};

struct mac {
	__u8 addr[6];
	__u8 pad[2];
};

#endif
