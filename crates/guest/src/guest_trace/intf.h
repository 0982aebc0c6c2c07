/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The interface between guest_trace and its Rust half. The Rust side of every type here is generated from
 * the object's BTF at build time (build.rs). What to follow is in `struct settings`, as on the host.
 */
#ifndef TEIJI_GUEST_TRACE_INTF_H
#define TEIJI_GUEST_TRACE_INTF_H

#include "path_trace/intf.h"

enum guest_record_type {
	GUEST_RECEIVED,
	GUEST_QUEUED,
	GUEST_READ,
	GUEST_SENT,
	GUEST_HANDED,
	GUEST_THREAD,
	GUEST_MATCHED,
};

/* Starts every record, and is the whole record of GUEST_HANDED. */
struct guest_head {
	__u64 ts; /* bpf_ktime_get_ns() */
	__u64 print;
	__u16 cpu;
	__u8 type; /* enum guest_record_type */
	__u8 pad[5];
};

struct guest_received {
	struct guest_head head;
	__u64 interrupted; /* 0: not known, or none */
};

struct guest_queued {
	struct guest_head head;
	__u32 backlog; /* packets that were in the socket's queue before */
	__u32 pad;
};

struct guest_read {
	struct guest_head head;
	__u64 woken;   /* 0: the thread was not asleep */
	__u64 running; /* when it got a CPU then */
	__u32 tid;
	__u32 woken_by; /* thread id; 0: an interrupt */
};

struct guest_sent {
	struct guest_head head;
	__u64 began; /* 0: not known */
	__u32 tid;   /* 0: sent in an interrupt */
	__u32 pad;
};

struct guest_thread {
	struct guest_head head;
	__u64 started; /* 0: before the trace */
	__u32 tid;
	__u32 process;
	__u32 parent; /* the thread that created it; 0 if started is 0 */
	__u32 pad;
	char comm[16];
};

/* A packet that takes part in a request, at a PCI device. */
struct guest_matched {
	struct guest_head head;
	__u64 key;
	__u64 interrupted; /* of one that was received: as in struct guest_received */
	__u64 previous;	   /* when that CPU was interrupted before that, by whatever device; 0: not known */
	__u16 vendor;
	__u16 device;
	__u8 role; /* enum role */
	__u8 sent;
	__u8 own; /* of one that was received: that interrupt was certainly its own */
	__u8 pad;
};

/* Addresses of data of the kernel, from its symbol table. 0: not known. */
struct guest_symbols {
	__u64 page_offset_base; /* where physical memory is mapped */
	__u64 vmemmap_base;	/* where the struct pages are */
	__u64 per_cpu_offset;	/* what to add to the address of a variable for each CPU: an array */
	__u64 preempt_count;	/* a variable for each CPU */
	__u64 pcpu_hot;		/* the variable for each CPU that contains the former one */
};

/* This guest's end of the connection by which it reports; version 0: that is not one of TCP. */
struct own_end {
	struct tcp_end end;
	__u32 pad; /* constants take a multiple of 8 bytes */
};

#endif
