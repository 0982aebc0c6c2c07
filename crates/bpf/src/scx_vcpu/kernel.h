/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The kernel types and functions that scx_vcpu uses, reduced to the members that it needs. libbpf relocates
 * every access to the running kernel's layout (CO-RE) and finds the members of sched_ext_ops by name, so
 * neither vmlinux.h nor a header of a recent kernel is needed to build.
 *
 * sched_ext's functions are those of Linux 6.19 and newer: since then several take their arguments in a
 * struct.
 */
#ifndef TEIJI_SCX_VCPU_KERNEL_H
#define TEIJI_SCX_VCPU_KERNEL_H

#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;

/* include/uapi/linux/bpf.h, which older distributions ship without these */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
	BPF_F_NO_PREALLOC = 1 << 0,
	BPF_F_RDONLY_PROG = 1 << 7,
	BPF_F_MMAPABLE = 1 << 10,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1 << 0,
	BPF_F_TIMER_ABS = 1 << 0,
	BPF_F_TIMER_CPU_PIN = 1 << 1, /* Linux 6.7 */
};

/* Linux 6.12 */
struct bpf_iter_scx_dsq {
	__u64 opaque[6];
} __attribute__((aligned(8)));

struct bpf_timer {
	__u64 opaque[2];
} __attribute__((aligned(8)));

struct bpf_iter_num {
	__u64 opaque[1];
} __attribute__((aligned(8)));

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#define ENOMEM 12
#define EEXIST 17
#define EINVAL 22
#define ESRCH 3
#define ENOSPC 28

/* kernel/sched/ext_internal.h; the values are those of the running kernel (core_enum) */
enum scx_wake_flags {
	SCX_WAKE_SYNC = 1 << 4,
};

enum scx_enq_flags {
	SCX_ENQ_LAST = 1ULL << 41,
};

/* The values of the first kernels that have them: these are written into a struct, so they are not relocated.
 */
enum scx_ops_flags {
	SCX_OPS_ENQ_LAST = 1 << 1,		 /* Linux 6.12 */
	SCX_OPS_ENQ_EXITING = 1 << 2,		 /* Linux 6.12 */
	SCX_OPS_ENQ_MIGRATION_DISABLED = 1 << 4, /* Linux 6.14 */
};

enum scx_deq_flags {
	SCX_DEQ_SLEEP = 1,
};

enum scx_exit_kind {
	SCX_EXIT_NONE,
};

enum scx_kick_flags {
	SCX_KICK_IDLE = 1,
	SCX_KICK_PREEMPT = 2,
};

enum scx_ent_flags {
	SCX_TASK_QUEUED = 1,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct net {
	u64 net_cookie;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
};

struct sk_buff {
	struct net_device *dev;
};

/* Not only declared: libbpf compares the kinds of types in the functions' prototypes. */
struct cpumask {
	unsigned long bits[1];
};

struct sched_ext_entity {
	u32 flags;
	u32 weight;
	u64 slice;
	u64 dsq_vtime;
};

struct task_struct {
	int pid;
	int nr_cpus_allowed;
	const struct cpumask *cpus_ptr;
	u64 start_boottime;
	struct sched_ext_entity scx;
};

struct scx_init_task_args {
	bool fork;
};

struct scx_exit_task_args {
	bool cancelled;
};

struct scx_exit_info {
	enum scx_exit_kind kind;
	s64 exit_code;
	const char *reason;
	char *msg;
};

/* Linux 6.19 */
struct scx_bpf_dsq_insert_vtime_args {
	u64 dsq_id;
	u64 slice;
	u64 vtime;
	u64 enq_flags;
};

struct sched_ext_ops {
	s32 (*select_cpu)(struct task_struct *p, s32 prev_cpu, u64 wake_flags);
	void (*enqueue)(struct task_struct *p, u64 enq_flags);
	void (*dispatch)(s32 cpu, struct task_struct *prev);
	void (*runnable)(struct task_struct *p, u64 enq_flags);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, bool runnable);
	void (*quiescent)(struct task_struct *p, u64 deq_flags);
	void (*disable)(struct task_struct *p);
	s32 (*init_task)(struct task_struct *p, struct scx_init_task_args *args);
	void (*exit_task)(struct task_struct *p, struct scx_exit_task_args *args);
	s32 (*init)(void);
	void (*exit)(struct scx_exit_info *info);
	u64 flags;
	u32 timeout_ms;
	char name[128];
};

#pragma clang attribute pop

/* kernel/sched/ext.c and ext_idle.c */
extern s32 scx_bpf_create_dsq(u64 dsq_id, s32 node) __ksym;
extern s32 scx_bpf_select_cpu_dfl(struct task_struct *p, s32 prev_cpu, u64 wake_flags, bool *is_idle) __ksym;
extern s32 scx_bpf_pick_idle_cpu(const struct cpumask *allowed, u64 flags) __ksym;
extern bool __scx_bpf_dsq_insert_vtime(struct task_struct *p,
				       struct scx_bpf_dsq_insert_vtime_args *args) __ksym;
extern struct task_struct *scx_bpf_dsq_peek(u64 dsq_id) __ksym;
extern s32 scx_bpf_dsq_nr_queued(u64 dsq_id) __ksym;
extern int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq_id, u64 flags) __ksym;
extern struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it) __ksym;
extern void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __ksym;
/* Linux 6.13 */
extern void scx_bpf_dsq_move_set_vtime(struct bpf_iter_scx_dsq *it, u64 vtime) __ksym;
extern bool scx_bpf_dsq_move_vtime(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq_id,
				   u64 enq_flags) __ksym;
extern void scx_bpf_kick_cpu(s32 cpu, u64 flags) __ksym;
extern s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym;
extern bool scx_bpf_task_set_slice(struct task_struct *p, u64 slice) __ksym;
extern bool scx_bpf_task_set_dsq_vtime(struct task_struct *p, u64 vtime) __ksym;
/* 7.1: with flags; libbpf leaves out what follows three underscores, the kernel's name has three */
extern bool scx_bpf_dsq_move_to_local___v2___kernel(u64 dsq_id, u64 enq_flags) __ksym __weak;
extern bool scx_bpf_dsq_move_to_local___v1(u64 dsq_id) __ksym __weak;

/* kernel/bpf/helpers.c, kernel/bpf/cpumask.c, kernel/bpf/bpf_iter.c */
extern struct task_struct *bpf_task_from_pid(s32 pid) __ksym;
extern void bpf_task_release(struct task_struct *p) __ksym;
extern bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *cpumask) __ksym;
extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __ksym;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __ksym;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __ksym;

#endif
