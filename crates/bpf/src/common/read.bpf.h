/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Reads the kernel's memory at addresses that the verifier knows nothing about. bpf_rdonly_cast() (Linux 6.2)
 * makes of such an address a pointer that the program itself can load from: the kernel gives 0 if the load
 * faults. That is a few instructions; a call of bpf_probe_read_kernel() is about a hundred.
 *
 * The includer has the types of kernel.h and a constant `settings`, whose member `loads` says whether the
 * kernel has bpf_rdonly_cast().
 */
#ifndef TEIJI_READ_BPF_H
#define TEIJI_READ_BPF_H

/* The kernel refuses loads from its memory except from the members of its own types. Of these types one
 * scalar of each size is used. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct timespec64___load {
	s64 tv_sec;
};
struct in_addr___load {
	u32 s_addr;
};
struct udphdr___load {
	u16 source;
};
struct ipv6_opt_hdr___load {
	u8 nexthdr;
};
#pragma clang attribute pop

extern void *bpf_rdonly_cast(const void *address, u32 type) __ksym __weak;

#define LOAD(type, member, at)                                                                               \
	(((struct type *)bpf_rdonly_cast(at, bpf_core_type_id_kernel(struct type)))->member)

static __always_inline u64 load_64(const void *at)
{
	return LOAD(timespec64___load, tv_sec, at);
}

static __always_inline u32 load_32(const void *at)
{
	return LOAD(in_addr___load, s_addr, at);
}

static __always_inline u16 load_16(const void *at)
{
	return LOAD(udphdr___load, source, at);
}

static __always_inline u8 load_8(const void *at)
{
	return LOAD(ipv6_opt_hdr___load, nexthdr, at);
}

/* Reads a number of so many bytes, a constant; 0 if it cannot be read. */
static __always_inline u64 read_number(const void *at, u32 size)
{
	u64 number = 0;

	if (settings.loads)
		return size == 8   ? load_64(at)
		       : size == 4 ? load_32(at)
		       : size == 2 ? load_16(at)
				   : load_8(at);
	bpf_probe_read_kernel(&number, size, at);
	return number;
}

/* Reads a member, a number or a pointer, of a type of kernel.h; 0 if it cannot be read. */
#define READ(from, member) ((typeof((from)->member))read_number(&(from)->member, sizeof((from)->member)))

#endif
