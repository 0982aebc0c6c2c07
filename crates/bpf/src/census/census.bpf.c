// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Counts what the threads of VMs do, and how long that takes: nothing leaves the kernel but these sums.
 *
 *   probe                          says
 *   kvm_entry, kvm_exit            a vCPU is in guest mode; why it left it
 *   kvm_arch_no_poll               it halts
 *   kvm_vcpu_wakeup                it was halted, for how long, and whether it slept
 *   handle_rx, handle_tx           a vhost worker carries packets to the guest, frames from it
 *
 *            kvm_exit              kvm_arch_no_poll
 *     GUEST ──────────► EXIT ─────────────────────► HALT
 *       ▲ kvm_entry      │ ▲     kvm_vcpu_wakeup     │
 *       └────────────────┘ └─────────────────────────┘
 *
 * A thread has an entry in `threads` if user space has made one; the programs make none. All times are those
 * of the clock: a thread that waits for a CPU meanwhile waits within them.
 *
 * Needs Linux 6.1. To look at it by hand: bpftool map dump name threads
 */
#include "kernel.h"
#include "intf.h"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile struct census_settings settings;

/* Names the types in the object's BTF so that the Rust half can be generated. */
struct {
	struct census_thread thread;
	struct census_settings settings;
	enum doing doing;
} named_types SEC(".bss.types");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CENSUS_THREADS);
	__type(key, u32);
	__type(value, struct census_thread);
} threads SEC(".maps");

static __always_inline struct census_thread *current_thread(void)
{
	u32 tid = (u32)bpf_get_current_pid_tgid();

	return bpf_map_lookup_elem(&threads, &tid);
}

static __always_inline void add(struct done *d, u64 ns)
{
	d->times++;
	d->ns += ns;
}

static __always_inline void now_does(struct census_thread *t, u32 what, u64 now)
{
	t->doing = what;
	t->since = now;
}

#define ISA_VMX 1 /* KVM_ISA_VMX, KVM_ISA_SVM: arch/x86/include/asm/kvm_host.h, kvm/trace.h */
#define ISA_SVM 2

/* Why the vCPU has left guest mode. `vcpu` is the first member of the types of both vendors. */
static __always_inline u32 exit_kind(struct kvm_vcpu *vcpu, u32 isa)
{
	u32 code = EXIT_CODES - 1;

	/* newer verifiers want to see this */
	if (!vcpu)
		return settings.kinds_amd[code];
	if (isa == ISA_SVM && bpf_core_type_exists(struct vcpu_svm)) {
		code = BPF_CORE_READ((struct vcpu_svm *)vcpu, vmcb, control.exit_code);
	} else if (isa == ISA_VMX && bpf_core_field_exists(struct vcpu_vmx, exit_reason)) {
		bpf_core_read(&code, sizeof(code), &((struct vcpu_vmx *)vcpu)->exit_reason);
		code &= 0xffff;
	} else if (isa == ISA_VMX && bpf_core_field_exists(struct vcpu_vmx___vt, vt)) {
		bpf_core_read(&code, sizeof(code), &((struct vcpu_vmx___vt *)vcpu)->vt.exit_reason);
		code &= 0xffff;
	}
	if (code >= EXIT_CODES)
		code = EXIT_CODES - 1;
	return isa == ISA_SVM ? settings.kinds_amd[code] : settings.kinds_intel[code];
}

SEC("tp_btf/kvm_exit")
int BPF_PROG(on_exit, struct kvm_vcpu *vcpu, u32 isa)
{
	struct census_thread *t = current_thread();
	u64 now;

	if (!t)
		return 0;
	now = bpf_ktime_get_ns();
	if (t->doing == DOING_GUEST)
		add(&t->guest, now - t->since);
	t->exit = exit_kind(vcpu, isa);
	t->left = now;
	t->halted_since_exit = 0;
	now_does(t, DOING_EXIT, now);
	return 0;
}

SEC("tp_btf/kvm_entry")
int BPF_PROG(on_entry)
{
	struct census_thread *t = current_thread();
	u64 now, away;

	if (!t)
		return 0;
	now = bpf_ktime_get_ns();
	if (t->doing == DOING_EXIT || t->doing == DOING_HALT) {
		away = now - t->left;
		if (t->exit < EXITS)
			add(&t->exits[t->exit],
			    away > t->halted_since_exit ? away - t->halted_since_exit : 0);
	}
	now_does(t, DOING_GUEST, now);
	return 0;
}

SEC("fentry/kvm_arch_no_poll")
int BPF_PROG(on_halt)
{
	struct census_thread *t = current_thread();

	if (t && t->doing == DOING_EXIT)
		now_does(t, DOING_HALT, bpf_ktime_get_ns());
	return 0;
}

SEC("tp_btf/kvm_vcpu_wakeup")
int BPF_PROG(on_wakeup, u64 ns, bool slept)
{
	struct census_thread *t = current_thread();

	/* a halt that began before the thread was followed */
	if (!t || t->doing == DOING_UNKNOWN)
		return 0;
	add(&t->halted, ns);
	if (!slept)
		add(&t->polled, ns);
	t->halted_since_exit += ns;
	if (t->doing == DOING_HALT)
		now_does(t, DOING_EXIT, bpf_ktime_get_ns());
	return 0;
}

static __always_inline int begins(u32 what)
{
	struct census_thread *t = current_thread();

	if (t)
		now_does(t, what, bpf_ktime_get_ns());
	return 0;
}

SEC("fentry/handle_rx")
int BPF_PROG(on_rx)
{
	return begins(DOING_RX);
}

SEC("fentry/handle_tx")
int BPF_PROG(on_tx)
{
	return begins(DOING_TX);
}

static __always_inline int ends(u32 what)
{
	struct census_thread *t = current_thread();
	u64 ns;

	if (!t || t->doing != what)
		return 0;
	ns = bpf_ktime_get_ns() - t->since;
	add(what == DOING_RX ? &t->rx : &t->tx, ns);
	t->doing = DOING_UNKNOWN;
	return 0;
}

SEC("fexit/handle_rx")
int BPF_PROG(on_rx_done)
{
	return ends(DOING_RX);
}

SEC("fexit/handle_tx")
int BPF_PROG(on_tx_done)
{
	return ends(DOING_TX);
}
