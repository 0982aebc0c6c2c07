// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A program that triggers itself, so that a test can check that the kernel counts the runs that it skips
 * (recursion_misses): again() is attached to the tracepoint of bpf_trace_printk(), and calls that function.
 * Not part of the product.
 */
#include <linux/types.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("tp_btf/bpf_trace_printk")
int again(void *ctx)
{
	bpf_printk("again");
	return 0;
}

SEC("syscall")
int begin(void *ctx)
{
	bpf_printk("begin");
	return 0;
}
