// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * guest_trace with its probes of functions at tracepoints instead, for tests on kernels that do not let
 * functions be probed (those of some hosting providers). It is right only if each socket has one datagram at
 * a time in its queue. Not part of the product.
 *
 *   __udp_enqueue_schedule_skb     sk_data_ready, which it calls before it wakes threads, to softirq_exit
 *   __skb_recv_udp                 sock_recv_length
 *   tcp_rcv_established            tcp_probe, at its beginning, to softirq_exit
 *   inet_sendmsg                   sys_enter, sys_exit; sock_send_length for the filter
 *   __napi_schedule                napi_poll, which is no interrupt
 */
#define NO_FUNCTIONS
#include "guest_trace.bpf.c"

/* The datagram in the queue of each socket. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, u64);
	__type(value, u64);
} last SEC(".maps");

SEC("tp_btf/sk_data_ready")
int BPF_PROG(on_data_ready, struct sock *sk)
{
	struct sk_buff *skb = sk->sk_receive_queue.prev;
	u64 address = (u64)skb, socket = (u64)sk;

	if (sk->sk_protocol != PROTO_UDP || !sk->sk_receive_queue.qlen)
		return 0;
	bpf_map_update_elem(&last, &socket, &address, BPF_ANY);
	return enqueue(sk, skb);
}

SEC("tp_btf/tcp_probe")
int BPF_PROG(on_tcp_probe, struct sock *sk, struct sk_buff *skb)
{
	return enqueue_segment(sk, skb);
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(on_softirq_done)
{
	struct cpu *c = this_cpu();

	return c && c->enqueues ? enqueued(c->enqueues, 0) : 0;
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(on_received, struct sock *sk, int ret, int flags)
{
	u64 socket = (u64)sk, *address = bpf_map_lookup_elem(&last, &socket);

	return address && !(flags & MSG_PEEK) ? consume(*address) : 0;
}

SEC("tp_btf/sys_enter")
int BPF_PROG(on_sys_enter, void *regs, long id)
{
	return id == 44 || id == 46 ? sends() : 0; /* sendto, sendmsg */
}

SEC("tp_btf/sys_exit")
int BPF_PROG(on_sys_exit, void *regs, long ret)
{
	return has_sent();
}

/* A send of another protocol than the filter's is none. */
SEC("tp_btf/sock_send_length")
int BPF_PROG(on_sent_length, struct sock *sk)
{
	return may_follow(sk->sk_socket) ? 0 : has_sent();
}

SEC("tp_btf/napi_poll")
int BPF_PROG(on_polled, struct napi_struct *napi)
{
	return scheduled(napi);
}
