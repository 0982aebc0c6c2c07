/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The few kernel types that the census reads, reduced to the members that it needs; see path_trace/kernel.h.
 */
#ifndef TEIJI_CENSUS_KERNEL_H
#define TEIJI_CENSUS_KERNEL_H

#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>

typedef __u8 u8;
typedef __u32 u32;
typedef __u64 u64;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kvm_vcpu {
	int vcpu_id;
};

/* AMD: arch/x86/kvm/svm/svm.h, arch/x86/include/asm/svm.h */
struct vmcb_control_area {
	u32 exit_code; /* its low half where it has 64 bits */
};

struct vmcb {
	struct vmcb_control_area control;
};

struct vcpu_svm {
	struct vmcb *vmcb;
};

/* Intel: arch/x86/kvm/vmx/vmx.h, before Linux 6.15 and since */
union vmx_exit_reason {
	u32 full;
};

struct vcpu_vmx {
	union vmx_exit_reason exit_reason;
};

struct vcpu_vt {
	union vmx_exit_reason exit_reason;
};

struct vcpu_vmx___vt {
	struct vcpu_vt vt;
};

#pragma clang attribute pop

#endif
