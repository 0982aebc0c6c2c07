/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The few kernel types that guest_trace reads, reduced to the members that it needs. libbpf relocates every
 * access to the running kernel's layout (CO-RE), so the order and offsets here mean nothing and no vmlinux.h
 * is needed to build.
 */
#ifndef TEIJI_GUEST_KERNEL_H
#define TEIJI_GUEST_KERNEL_H

#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;

#define IFF_LOOPBACK 8
#define PAGE_SHIFT 12
#define MSG_PEEK 2
#define LOOPBACK_IFINDEX 1 /* in every network namespace */

/*
 * A part of a packet that is not in its linear part. It is a bio_vec until Linux 6.8 and a skb_frag with
 * other names since then, of the same layout. The lowest bit of page is set if there is no page.
 */
struct frag {
	u64 page;
	u32 len;
	u32 offset;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct bus_type {
	const char *name;
};

struct device {
	struct device *parent;
	const struct bus_type *bus;
};

struct net_device {
	unsigned int flags;
	struct device dev;
};

struct pci_dev {
	u16 vendor;
	u16 device;
	struct device dev;
};

struct sk_buff {
	struct net_device *dev;
	unsigned int len;
	unsigned int data_len;
	int skb_iif;
	u16 mac_header;
	unsigned int end; /* from head: struct skb_shared_info */
	unsigned int napi_id;
	unsigned char *head;
	unsigned char *data;
};

struct skb_shared_info {
	u8 nr_frags;
	struct frag frags[1];
};

struct page {
	unsigned long flags;
};

struct sk_buff_head {
	struct sk_buff *prev;
	u32 qlen;
};

typedef struct {
	int owned; /* a thread holds the socket, or its backlog is being handled */
} socket_lock_t;

struct sock {
	struct socket *sk_socket;
	u16 sk_protocol;
	socket_lock_t sk_lock;
	struct sk_buff_head sk_receive_queue;
};

struct udp_sock {
	struct sk_buff_head reader_queue;
};

struct tcp_sock {
	u32 rcv_nxt;	/* the sequence number that is expected next */
	u32 copied_seq; /* what comes before it has been read */
};

struct socket {
	struct sock *sk;
};

struct napi_struct {
	unsigned int napi_id;
};

struct task_struct {
	unsigned int __state;
	int pid;
	int tgid;
};

/* Contains the preemption count in Linux 6.2 to 6.14. */
struct pcpu_hot {
	int preempt_count;
};

#pragma clang attribute pop

#endif
