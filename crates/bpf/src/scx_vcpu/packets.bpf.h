/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Packets of real-time VMs, as they pass their taps. */
#ifndef TEIJI_SCX_VCPU_PACKETS_BPF_H
#define TEIJI_SCX_VCPU_PACKETS_BPF_H

#include "wake.bpf.h"

static __always_inline u32 *vm_of(struct net_device *dev)
{
	struct port port = {
	    .netns = BPF_CORE_READ(dev, nd_net.net, net_cookie),
	    .ifindex = BPF_CORE_READ(dev, ifindex),
	};

	return bpf_map_lookup_elem(&ports, &port);
}

SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(on_start_xmit, struct sk_buff *skb, struct net_device *dev)
{
	u32 *vm = vm_of(dev);
	u64 now = bpf_ktime_get_ns();

	if (!vm || !arrive(*vm, now))
		return 0;
	/* Threads that wait by weight go before others from now on. */
	tell_threads(*vm, NO_SLOT, now);
	return 0;
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(on_receive_skb, struct sk_buff *skb)
{
	u32 *vm = vm_of(BPF_CORE_READ(skb, dev));

	if (vm)
		answer(*vm);
	return 0;
}

#endif
