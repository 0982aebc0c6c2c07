/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The few kernel types that path_trace reads, reduced to the members that it needs. libbpf relocates
 * every access to the running kernel's layout (CO-RE), so the order and offsets here mean nothing and
 * no vmlinux.h is needed to build.
 */
#ifndef TEIJI_KERNEL_H
#define TEIJI_KERNEL_H

#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s64 s64;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	void *rx_handler_data;
	possible_net_t nd_net;
};

struct sk_buff {
	struct sk_buff *next;
	struct net_device *dev;
	unsigned int len;
	unsigned int data_len;
	u16 queue_mapping;
	u16 mac_header;
	u8 pkt_type : 3;
	unsigned int end; /* from head: struct skb_shared_info */
	unsigned char *head;
	unsigned char *data;
};

struct skb_shared_info {
	unsigned short gso_size;
};

struct thread_info {
	u32 cpu;
};

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live;
};

struct task_struct {
	struct thread_info thread_info;
	int pid;
	int tgid;
	struct signal_struct *signal;
};

struct socket {
	short type;
};

struct file {
	void *private_data;
};

struct kiocb {
	struct file *ki_filp;
};

struct msghdr {
	void *msg_control;
};

struct ptr_ring {
	int producer;
	int consumer_head;
	int size;
	void **queue;
};

struct tun_struct {
	struct net_device *dev;
};

struct tun_file {
	struct socket socket;
	struct tun_struct *tun;
	u16 queue_index;
	struct ptr_ring tx_ring;
};

struct tap_dev {
	struct net_device *dev;
	int numvtaps;
};

/* struct tap_queue of the kernel: libbpf leaves out what follows three underscores. */
struct tap_queue___of_tap {
	struct socket sock;
	struct tap_dev *tap;
	u16 queue_index;
	struct ptr_ring ring;
};

struct list_head {
	struct list_head *next;
};

struct wait_queue_entry {
	void *private;
};

struct vhost_virtqueue;

struct vhost_dev {
	struct vhost_virtqueue **vqs;
};

struct vhost_poll {
	struct wait_queue_entry wait;
	struct vhost_virtqueue *vq;
};

struct vhost_virtqueue {
	struct vhost_dev *dev;
	struct vhost_poll poll;
	void *private_data;
	u16 last_used_idx;
};

/* Contains the preemption count in Linux 6.2 to 6.14. */
struct pcpu_hot {
	int preempt_count;
};

struct vhost_net_buf {
	int tail;
	int head;
};

struct vhost_net_virtqueue {
	struct vhost_virtqueue vq;
	struct vhost_net_buf rxq;
};

struct vhost_net {
	struct vhost_net_virtqueue vqs[2];
};

struct kvm {
	int userspace_pid;
};

struct kvm_msi {
	u32 address_lo;
	u32 address_hi;
	u32 data;
};

struct kvm_kernel_irq_routing_entry {
	u32 gsi;
	u32 type;
};

struct kvm_lapic {
	bool apicv_active;
};

struct kvm_queued_interrupt {
	bool injected;
	u8 nr;
};

struct kvm_vcpu_arch {
	struct kvm_lapic *apic;
	struct kvm_queued_interrupt interrupt;
};

struct kvm_vcpu {
	struct kvm *kvm;
	int vcpu_id;
	unsigned int halt_poll_ns;
	struct kvm_vcpu_arch arch;
};

#pragma clang attribute pop

#endif
