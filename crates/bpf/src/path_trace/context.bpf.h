/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Whether what happens is done by the current thread, or by an interrupt of it.
 */
#ifndef TEIJI_CONTEXT_BPF_H
#define TEIJI_CONTEXT_BPF_H

#ifndef NO_PREEMPT_COUNT
extern const int __preempt_count __ksym __weak;
extern const struct pcpu_hot pcpu_hot __ksym __weak;
#endif

#define SERVING_SOFTIRQ (1u << 8)
/* hardware interrupts and NMIs, by include/linux/preempt.h; the top bit is not a count */
#define IN_INTERRUPT 0x7fff0000u

/*
 * Whether the current thread is interrupted: then it is not the thread that causes what happens. This cannot
 * be read on a kernel without the symbols of its data (CONFIG_KALLSYMS_ALL); false there: what an interrupt
 * does is taken for the thread's. To assume the opposite would cost such kernels every interrupt that a
 * worker sends, and the states of every worker that hands over frames, nearly all of which are its own:
 * others come only from a tap with NAPI or receive packet steering, or from an interrupt in the middle of a
 * signal.
 */
static __always_inline bool interrupted(void)
{
	u32 count = 0;

#ifndef NO_PREEMPT_COUNT
	if (&__preempt_count)
		count = *(const int *)bpf_this_cpu_ptr(&__preempt_count);
	else if (&pcpu_hot)
		count = ((const struct pcpu_hot *)bpf_this_cpu_ptr(&pcpu_hot))->preempt_count;
#endif
	return count & (IN_INTERRUPT | SERVING_SOFTIRQ);
}

/* In which context this happens. */
static __always_inline u8 context(void)
{
#ifdef NO_PREEMPT_COUNT
	return CONTEXT_UNKNOWN;
#else
	return interrupted() ? CONTEXT_INTERRUPT : CONTEXT_THREAD;
#endif
}

#endif
