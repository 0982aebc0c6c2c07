/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The kernel types and functions that qdisc_edf uses, reduced to the members that it needs. libbpf relocates
 * every access to the running kernel's layout (CO-RE) and finds the members of Qdisc_ops by name, so
 * neither vmlinux.h nor a header of a recent kernel is needed to build.
 */
#ifndef TEIJI_QDISC_EDF_KERNEL_H
#define TEIJI_QDISC_EDF_KERNEL_H

#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s64 s64;

/* include/uapi/linux/bpf.h, which older distributions ship without rbtrees */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_F_RDONLY_PROG = 1 << 7,
	BPF_F_MMAPABLE = 1 << 10,
};

struct bpf_spin_lock {
	__u32 val;
};

struct bpf_rb_root {
	__u64 opaque[2];
} __attribute__((aligned(8)));

struct bpf_rb_node {
	__u64 opaque[4];
} __attribute__((aligned(8)));

struct bpf_dynptr {
	__u64 opaque[2];
} __attribute__((aligned(8)));

struct bpf_iter_num {
	__u64 opaque[1];
} __attribute__((aligned(8)));

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_tracing.h>

#define EBUSY 16
#define ENODEV 19
#define EINVAL 22
#define EOPNOTSUPP 95

/* include/net/net_xmit.h, include/uapi/linux/pkt_sched.h, include/uapi/linux/if_arp.h */
#define NET_XMIT_SUCCESS 0
#define NET_XMIT_DROP 1
#define TC_H_ROOT 0xffffffffU
#define ARPHRD_ETHER 1

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct net {
	u64 net_cookie;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	unsigned short type;
	possible_net_t nd_net;
};

struct netdev_queue {
	struct net_device *dev;
};

struct qdisc_skb_head {
	u32 qlen;
};

struct gnet_stats_queue {
	u32 qlen;
	u32 backlog;
	u32 drops;
	u32 requeues;
	u32 overlimits;
};

struct Qdisc {
	u32 limit; /* of packets, in the kernel's own qdiscs; nothing else looks at it */
	u32 parent;
	struct netdev_queue *dev_queue;
	struct qdisc_skb_head q;
	struct gnet_stats_queue qstats;
};

struct sk_buff {
	char cb[48];
	unsigned int end;
	unsigned char *head;
	u32 vlan_all;
};

/* include/net/sch_generic.h; pkt_segs since Linux 6.19 */
struct qdisc_skb_cb {
	unsigned int pkt_len;
	u16 pkt_segs;
};

struct skb_shared_info {
	unsigned short gso_segs;
};

#pragma clang attribute pop

struct nlattr;
struct netlink_ext_ack;

/* never read; libbpf compares declarations of kernel functions by the kind of their types */
struct bpf_sk_buff_ptr {
	struct sk_buff *skb;
};

struct __sk_buff {
	u32 len;
};

struct Qdisc_ops {
	char id[16];
	int (*enqueue)(struct sk_buff *, struct Qdisc *, struct bpf_sk_buff_ptr *);
	struct sk_buff *(*dequeue)(struct Qdisc *);
	int (*init)(struct Qdisc *, struct nlattr *, struct netlink_ext_ack *);
	void (*reset)(struct Qdisc *);
	void (*destroy)(struct Qdisc *);
};

/* net/sched/bpf_qdisc.c */
extern u32 bpf_skb_get_hash(struct sk_buff *skb) __ksym;
extern void bpf_kfree_skb(struct sk_buff *skb) __ksym;
extern void bpf_qdisc_skb_drop(struct sk_buff *skb, struct bpf_sk_buff_ptr *to_free) __ksym;
extern void bpf_qdisc_watchdog_schedule(struct Qdisc *sch, u64 expire, u64 delta) __ksym;
extern void bpf_qdisc_bstats_update(struct Qdisc *sch, const struct sk_buff *skb) __ksym;

/* net/core/filter.c, kernel/bpf/helpers.c */
extern int bpf_dynptr_from_skb(struct __sk_buff *skb, u64 flags, struct bpf_dynptr *ptr) __ksym;
extern void *bpf_dynptr_slice(const struct bpf_dynptr *ptr, u64 offset, void *buffer, u64 size) __ksym;
extern void *bpf_obj_new_impl(u64 local_type_id, void *meta) __ksym;
extern void bpf_obj_drop_impl(void *object, void *meta) __ksym;
extern struct bpf_rb_node *bpf_rbtree_first(struct bpf_rb_root *root) __ksym;
extern struct bpf_rb_node *bpf_rbtree_remove(struct bpf_rb_root *root, struct bpf_rb_node *node) __ksym;
extern int bpf_rbtree_add_impl(struct bpf_rb_root *root, struct bpf_rb_node *node,
			       bool(less)(struct bpf_rb_node *, const struct bpf_rb_node *), void *meta,
			       u64 offset) __ksym;
extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __ksym __weak;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __ksym __weak;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __ksym __weak;

#define __contains(name, node) __attribute__((btf_decl_tag("contains:" #name ":" #node)))

#ifndef container_of
#define container_of(ptr, type, member) ((type *)((void *)(ptr) - __builtin_offsetof(type, member)))
#endif

#endif
