// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * guest_trace: follows packets through a guest: from its NIC's interrupt to the application that reads them,
 * and from the application that sends to the NIC's driver.
 *
 * Every probe writes one record into a ring buffer. A packet is recognised from record to record, and on the
 * host, by its print: the fingerprint that packet_hash.bpf.h computes, with a secret that the host gives to
 * this guest alone. Nothing else of a packet leaves the kernel.
 *
 *   irq_handler_entry, __napi_schedule      the NIC's interrupt            \
 *   netif_receive_skb                       received from the driver       / RECEIVED
 *   __udp_enqueue_schedule_skb              put on a socket's queue          QUEUED
 *   sched_waking, sched_switch              a thread is woken, gets a CPU  \
 *   __skb_recv_udp, skb_consume_udp         taken by the application       / READ
 *   tcp_rcv_established                     put on the queue of a socket of TCP: QUEUED
 *   tcp_rcv_space_adjust                    the application has read from it: READ
 *   inet_sendmsg, inet6_sendmsg             a thread sends                 \
 *   net_dev_queue                           queued to a device             / SENT
 *   net_dev_start_xmit                      given to the driver              HANDED
 *   softirq_entry, softirq_exit             whether a thread sends, or a softirq
 *   sched_process_fork                      who created a thread             THREAD
 *   netif_receive_skb, net_dev_start_xmit   at a PCI device, if asked for    MATCHED
 *   napi_gro_receive_entry and others       the driver hands a packet over   (was it the interrupt's first)
 *
 * A datagram keeps its address (struct sk_buff) from the moment when it is put on a socket's queue until it
 * is taken off. So its print is kept by that address in between; whatever datagram gets the address next
 * passes __udp_enqueue_schedule_skb first, which replaces or removes the print. Before, the address is no
 * sign: a packet socket (tcpdump) makes the stack go on with a copy. There the print is computed again.
 *
 * A segment of TCP may be merged with others in its socket's queue, and be read in parts. So of what is in a
 * queue only the first segment is kept of which nothing has been read, by the socket: QUEUED and READ, when
 * the first of its bytes is read, are its own. If a client waits for each answer, that is the one with which
 * a request begins. Segments that come while a thread holds the socket are not kept: they wait in its
 * backlog, and are put on the queue with softirqs enabled.
 *
 * ICMP echoes are answered without a socket: for them there are RECEIVED, SENT and HANDED only.
 *
 * The scheduler's probes look at every thread that is woken or gets a CPU. They read one byte for those that
 * never read a packet, nor were woken by one.
 *
 * Assumptions: the parts of the network stack that are probed and copy (skb.bpf.h) run with softirqs
 * disabled, and one at a time on each CPU (not PREEMPT_RT, where points may be missing); x86-64. Programs
 * whose target a kernel lacks are left out by the Rust half.
 *
 * Needs Linux 5.15. To look at it by hand:
 *   bpftool prog load guest_trace.bpf.o /sys/fs/bpf/t autoattach; bpftool map dump name counters
 */
#include "kernel.h"
#include "intf.h"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile struct settings settings;
const volatile struct guest_symbols symbols;
const volatile struct own_end own;

#include "maps.bpf.h"
#include "common/packet_hash.bpf.h"
#include "skb.bpf.h"
#include "threads.bpf.h"

static __always_inline bool reports(const struct endpoints *e, bool to_guest)
{
	return own.end.version && is_end(&own.end, end_of_guest(e, to_guest));
}

/* ---- records ---- */

static __always_inline void fill_head(struct guest_head *h, u64 now, u8 type, u64 print)
{
	h->ts = now;
	h->print = print;
	h->cpu = bpf_get_smp_processor_id();
	h->type = type;
	__builtin_memset(h->pad, 0, sizeof(h->pad));
}

/* Says who a thread is, the first time that it is in a record. It is the current one. */
static __always_inline void introduce(u32 tid, struct thread *t)
{
	struct guest_thread *r;
	struct birth *b;

	if (!t || t->introduced)
		return;
	r = reserve(sizeof(*r));
	if (!r)
		return;
	fill_head(&r->head, bpf_ktime_get_ns(), GUEST_THREAD, 0);
	b = bpf_map_lookup_elem(&births, &tid);
	r->started = b ? b->at : 0;
	r->parent = b ? b->parent : 0;
	r->tid = tid;
	r->process = bpf_get_current_pid_tgid() >> 32;
	r->pad = 0;
	bpf_get_current_comm(r->comm, sizeof(r->comm));
	submit(r);
	t->introduced = 1;
}

/* ---- towards the application ---- */

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(on_irq_entry)
{
	struct cpu *c = this_cpu();

	if (!c)
		return 0;
	c->previous_irq = c->last_irq;
	c->irq = bpf_ktime_get_ns();
	c->last_irq = c->irq;
	return 0;
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(on_irq_exit)
{
	struct cpu *c = this_cpu();

	if (c)
		c->irq = 0;
	return 0;
}

/* Only on kernels that do not show their preemption count. */
SEC("tp_btf/softirq_entry")
int BPF_PROG(on_softirq_entry)
{
	struct cpu *c = this_cpu();

	if (c)
		c->softirq = 1;
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(on_softirq_exit)
{
	struct cpu *c = this_cpu();

	if (c)
		c->softirq = 0;
	return 0;
}

/* Assumed: a NIC raises a stale interrupt at most this long after its driver last polled it; ns. */
#define STALE_NS 100000000

/*
 * Whether the next interrupt may be stale: raised for a packet that an earlier NAPI poll has already taken.
 * This is possible if that poll took more packets than its interrupt announced: the NIC raises the pending
 * interrupt when the driver enables interrupts again, and a packet that is found then may have come later. An
 * interrupt that finds no packet was the stale one, and ends the doubt.
 */
static __always_inline bool maybe_stale(const struct interrupt *was, u64 now)
{
	bool caused = was->at && !was->maybe_stale; /* it was the first packet's */

	if (now > was->last + STALE_NS && now > was->at + STALE_NS)
		return false;
	return was->received > (caused ? 1 : 0) || (was->maybe_stale && !was->at);
}

/* The driver wants to be polled: in its interrupt, or once more after it has been polled. */
static __always_inline int scheduled(struct napi_struct *napi)
{
	struct cpu *c = this_cpu();
	struct interrupt i = {.cpu = bpf_get_smp_processor_id()}, *was;
	u32 id = napi->napi_id;

	if (!c || !id)
		return 0;
	i.at = c->irq;
	i.previous = i.at ? c->previous_irq : 0;
	was = settings.matching != MATCH_NONE ? bpf_map_lookup_elem(&interrupts, &id) : NULL;
	if (was)
		i.maybe_stale = maybe_stale(was, i.at ? i.at : bpf_ktime_get_ns());
	bpf_map_update_elem(&interrupts, &id, &i, BPF_ANY);
	return 0;
}

/* The device that a packet passes, if it is one of PCI. */
static __always_inline struct pci_dev *pci_device(struct sk_buff *skb)
{
	struct device *parent = BPF_CORE_READ(skb, dev, dev.parent);
	const char *name = parent ? BPF_CORE_READ(parent, bus, name) : NULL;
	char bus[4] = {};

	if (!name || bpf_probe_read_kernel(bus, sizeof(bus), name) || bus[0] != 'p' || bus[1] != 'c' ||
	    bus[2] != 'i' || bus[3])
		return NULL;
	return (void *)parent - bpf_core_field_offset(struct pci_dev, dev);
}

/* Reports the part in a request of a packet that was reported with the time `now`. */
static __always_inline void report_part(struct sk_buff *skb, const struct packet *p, u64 now, bool sent,
					const struct interrupt *i)
{
	struct guest_matched *r;
	struct pci_dev *pci;

	if (settings.matching == MATCH_NONE || p->role == ROLE_NONE)
		return;
	pci = pci_device(skb);
	if (!pci)
		return;
	r = reserve(sizeof(*r));
	if (!r)
		return;
	fill_head(&r->head, now, GUEST_MATCHED, p->fingerprint);
	r->key = p->key;
	r->interrupted = i ? i->at : 0;
	r->previous = i ? i->previous : 0;
	r->own = i && i->at && i->first_skb == (u64)skb;
	r->vendor = BPF_CORE_READ(pci, vendor);
	r->device = BPF_CORE_READ(pci, device);
	r->role = p->role;
	r->sent = sent;
	r->pad = 0;
	submit(r);
}

/*
 * The driver hands a packet to the stack, before that merges packets (GRO), or has another CPU handle them
 * (RPS). Whoever they are for.
 */
static __always_inline int driver_received(struct sk_buff *skb)
{
	struct interrupt *i;
	struct cpu *c;
	u32 id;

	if (settings.matching == MATCH_NONE || !bpf_core_field_exists(skb->napi_id))
		return 0;
	id = skb->napi_id;
	i = bpf_map_lookup_elem(&interrupts, &id);
	if (!i)
		return 0;
	c = this_cpu();
	if (!i->received && !i->maybe_stale && !i->napi_done && c && !c->freed_sent)
		i->first_skb = (u64)skb;
	else if (i->first_skb == (u64)skb) /* that one is gone, and this one has its address */
		i->first_skb = 0;
	i->received += 1;
	i->last = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/napi_gro_receive_entry")
int BPF_PROG(on_gro_receive, struct sk_buff *skb)
{
	return driver_received(skb);
}

SEC("tp_btf/napi_gro_frags_entry")
int BPF_PROG(on_gro_frags, struct sk_buff *skb)
{
	return driver_received(skb);
}

SEC("tp_btf/netif_receive_skb_list_entry")
int BPF_PROG(on_receive_list, struct sk_buff *skb)
{
	return driver_received(skb);
}

/* Also called by bridges and the like, for packets that a driver has handed over. */
SEC("tp_btf/netif_receive_skb_entry")
int BPF_PROG(on_receive, struct sk_buff *skb)
{
	return settings.matching != MATCH_NONE && pci_device(skb) ? driver_received(skb) : 0;
}

/*
 * A driver that is polled frees what it has sent, before it looks for packets: so the interrupt may have been
 * for that. A driver that frees it otherwise is not polled for it. `budget` is 0 if the driver is not polled.
 */
SEC("fentry/napi_consume_skb")
int BPF_PROG(on_free_sent, struct sk_buff *skb, int budget)
{
	struct cpu *c = settings.matching != MATCH_NONE && budget && skb ? this_cpu() : NULL;

	if (c)
		c->freed_sent = 1;
	return 0;
}

/* What is found before the driver asks again, a thread that polls the NIC itself has found (busy polling). */
SEC("fentry/napi_complete_done")
int BPF_PROG(on_complete, struct napi_struct *napi)
{
	u32 id = napi->napi_id;
	struct interrupt *i;
	struct cpu *c;

	if (settings.matching == MATCH_NONE)
		return 0;
	c = this_cpu();
	if (c)
		c->freed_sent = 0;
	i = bpf_map_lookup_elem(&interrupts, &id);
	if (i)
		i->napi_done = 1;
	return 0;
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(on_netif_receive_skb, struct sk_buff *skb)
{
	u64 now = bpf_ktime_get_ns();
	struct guest_received *r;
	struct packet p = {};
	struct interrupt *i;
	u32 id = 0;

	if (!of_a_wire(skb) || !identify_skb(skb, true, true, &p))
		return 0;
	r = reserve(sizeof(*r));
	if (!r)
		return 0;
	fill_head(&r->head, now, GUEST_RECEIVED, p.fingerprint);
	if (bpf_core_field_exists(skb->napi_id))
		id = skb->napi_id;
	/* on another CPU the packet was steered (RPS): the driver may have been interrupted again meanwhile
	 */
	i = bpf_map_lookup_elem(&interrupts, &id);
	if (i && i->cpu != bpf_get_smp_processor_id())
		i = NULL;
	r->interrupted = i ? i->at : 0;
	submit(r);
	report_part(skb, &p, now, false, i);
	return 0;
}

/* A datagram is about to be put on a socket's queue. */
static __always_inline int enqueue(struct sock *sk, struct sk_buff *skb)
{
	struct udp_sock *udp = (struct udp_sock *)sk;
	u64 address = (u64)skb;
	struct queued q = {};
	struct packet p = {};
	struct cpu *c;

	if (!of_a_wire(skb) || !identify_skb(skb, true, true, &p)) {
		bpf_map_delete_elem(&queued, &address);
		return 0;
	}
	c = this_cpu();
	if (!c)
		return 0;
	q.at = bpf_ktime_get_ns();
	q.print = p.fingerprint;
	c->backlog = sk->sk_receive_queue.qlen + BPF_CORE_READ(udp, reader_queue.qlen);
	c->queued = q;
	/* before the packet is in the queue, as then it may be read at once on another CPU */
	bpf_map_update_elem(&queued, &address, &q, BPF_ANY);
	c->enqueues = address;
	return 0;
}

/* It is on the queue, or has been dropped. */
static __always_inline int enqueued(u64 address, int error)
{
	struct cpu *c = this_cpu();
	struct guest_queued *r;

	if (!c || c->enqueues != address)
		return 0;
	c->enqueues = 0;
	if (error) { /* dropped: the queue is full */
		bpf_map_delete_elem(&queued, &address);
		return 0;
	}
	r = reserve(sizeof(*r));
	if (!r)
		return 0;
	fill_head(&r->head, c->queued.at, GUEST_QUEUED, c->queued.print);
	r->backlog = c->backlog;
	r->pad = 0;
	submit(r);
	return 0;
}

static __always_inline bool may_be_tcp(void)
{
	return !settings.proto || settings.proto == PROTO_TCP;
}

/* A segment of TCP is about to be put on a socket's queue. */
static __always_inline int enqueue_segment(struct sock *sk, struct sk_buff *skb)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct {
		u16 sport, dport;
		u32 seq, ack;
		u8 offset, flags; /* of the payload, in the upper half: words */
	} header;
	struct unread *before, first = {};
	u64 socket = (u64)sk;
	struct packet p = {};
	u32 next, unread_bytes;
	struct cpu *c;

	/* the stack has removed the device from it */
	if (!may_be_tcp() || skb->skb_iif == LOOPBACK_IFINDEX || BPF_CORE_READ(sk, sk_lock.owned))
		return 0;
	if (bpf_probe_read_kernel(&header, sizeof(header), skb->data))
		return 0;
	next = BPF_CORE_READ(tcp, rcv_nxt);
	first.seq = bpf_ntohl(header.seq);
	/* not one that comes too early, or once more, or without data */
	if (first.seq != next || skb->len <= (header.offset >> 4) * 4)
		return 0;
	before = bpf_map_lookup_elem(&unread, &socket);
	unread_bytes = next - BPF_CORE_READ(tcp, copied_seq);
	/* the difference is larger if it was another socket's at this address */
	if (before && next - before->seq <= unread_bytes)
		return 0;
	c = this_cpu();
	if (!c || !identify_skb(skb, true, true, &p))
		return 0;
	first.queued.at = bpf_ktime_get_ns();
	first.queued.print = p.fingerprint;
	c->backlog = sk->sk_receive_queue.qlen;
	c->queued = first.queued;
	bpf_map_update_elem(&unread, &socket, &first, BPF_ANY);
	c->enqueues = (u64)skb;
	return 0;
}

/* The current thread has read what was queued as q. */
static __always_inline int has_read(struct queued *q)
{
	u64 now = bpf_ktime_get_ns();
	u32 tid = current_tid();
	const struct sleep *slept = NULL;
	struct guest_read *r;
	struct thread *t;

	mark(tid);
	t = thread_of(tid);
	introduce(tid, t);
	r = reserve(sizeof(*r));
	if (!r)
		return 0;
	fill_head(&r->head, now, GUEST_READ, q->print);
	r->tid = tid;
	/* Only the sleep in which the packet came: it may have slept since then, for something else. */
	if (t && slept_through(&t->last, q->at))
		slept = &t->last;
	else if (t && slept_through(&t->for_packet, q->at))
		slept = &t->for_packet;
	r->woken = slept ? slept->woken : 0;
	r->running = slept ? slept->running : 0;
	r->woken_by = slept ? slept->woken_by : 0;
	submit(r);
	return 0;
}

/* The current thread has taken a datagram off a socket's queue. */
static __always_inline int consume(u64 address)
{
	struct queued *found = bpf_map_lookup_elem(&queued, &address), q;

	if (!found)
		return 0;
	q = *found;
	bpf_map_delete_elem(&queued, &address);
	return has_read(&q);
}

/* The current thread has read from a socket of TCP, or has looked only, which does not change copied_seq. */
SEC("tp_btf/tcp_rcv_space_adjust")
int BPF_PROG(on_tcp_read, struct sock *sk)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	u64 socket = (u64)sk;
	struct unread *first = may_be_tcp() ? bpf_map_lookup_elem(&unread, &socket) : NULL;
	struct queued q;

	if (!first || (s32)(BPF_CORE_READ(tcp, copied_seq) - first->seq) <= 0)
		return 0;
	q = first->queued;
	bpf_map_delete_elem(&unread, &socket);
	/* else the kernel has: sockmap, kTLS */
	return thread_sends() ? has_read(&q) : 0;
}

SEC("tp_btf/tcp_destroy_sock")
int BPF_PROG(on_tcp_destroyed, struct sock *sk)
{
	u64 socket = (u64)sk;

	if (may_be_tcp())
		bpf_map_delete_elem(&unread, &socket);
	return 0;
}

/* ---- from the application ---- */

static __always_inline bool may_follow(struct socket *sock)
{
	u16 protocol;

	if (!(settings.directions & DIR_OUT))
		return false;
	if (!settings.proto)
		return true;
	protocol = sock->sk->sk_protocol;
	return protocol == settings.proto || (settings.proto == PROTO_ICMP && protocol == PROTO_ICMPV6);
}

/* The current thread begins to send. */
static __always_inline int sends(void)
{
	struct thread *t = thread_of(current_tid());

	if (t)
		t->began = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int has_sent(void)
{
	u32 tid = current_tid();
	struct thread *t = bpf_map_lookup_elem(&threads, &tid);

	if (t)
		t->began = 0;
	return 0;
}

SEC("tp_btf/net_dev_queue")
int BPF_PROG(on_dev_queue, struct sk_buff *skb)
{
	struct thread *t = NULL;
	struct guest_sent *r;
	struct packet p = {};
	u32 tid = 0;

	if (!of_a_wire(skb) || !identify_skb(skb, false, false, &p))
		return 0;
	if (thread_sends()) {
		tid = current_tid();
		t = thread_of(tid);
		introduce(tid, t);
	}
	r = reserve(sizeof(*r));
	if (!r)
		return 0;
	fill_head(&r->head, bpf_ktime_get_ns(), GUEST_SENT, p.fingerprint);
	r->began = t ? t->began : 0;
	r->tid = tid;
	r->pad = 0;
	submit(r);
	return 0;
}

SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(on_dev_xmit, struct sk_buff *skb)
{
	struct guest_head *r;
	struct packet p = {};
	u64 now;

	if (!of_a_wire(skb) || !identify_skb(skb, false, false, &p))
		return 0;
	r = reserve(sizeof(*r));
	if (!r)
		return 0;
	now = bpf_ktime_get_ns();
	fill_head(r, now, GUEST_HANDED, p.fingerprint);
	submit(r);
	report_part(skb, &p, now, true, NULL);
	return 0;
}

/* ---- threads ---- */

SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *p)
{
	woken(p->pid);
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	/* of one that is preempted the state may have been set already: it goes on */
	if (!preempt && prev->__state)
		sleeps(prev->pid);
	got_cpu(next->pid);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	struct birth b = {.at = bpf_ktime_get_ns(), .parent = parent->pid};
	u32 tid = child->pid;

	/* what is known of a former thread with this id */
	bpf_map_delete_elem(&threads, &tid);
	bpf_map_update_elem(&births, &tid, &b, BPF_ANY);
	return 0;
}

/* ---- functions ---- */

#ifndef NO_FUNCTIONS /* see stand_in.bpf.c */

SEC("fentry/__napi_schedule")
int BPF_PROG(on_napi_schedule, struct napi_struct *napi)
{
	return scheduled(napi);
}

SEC("fentry/__napi_schedule_irqoff")
int BPF_PROG(on_napi_schedule_irqoff, struct napi_struct *napi)
{
	return scheduled(napi);
}

SEC("fentry/__udp_enqueue_schedule_skb")
int BPF_PROG(on_enqueue, struct sock *sk, struct sk_buff *skb)
{
	return enqueue(sk, skb);
}

SEC("fexit/__udp_enqueue_schedule_skb")
int BPF_PROG(on_enqueued, struct sock *sk, struct sk_buff *skb, int error)
{
	return enqueued((u64)skb, error);
}

SEC("fentry/tcp_rcv_established")
int BPF_PROG(on_segment, struct sock *sk, struct sk_buff *skb)
{
	return enqueue_segment(sk, skb);
}

SEC("fexit/tcp_rcv_established")
int BPF_PROG(on_segment_done, struct sock *sk, struct sk_buff *skb)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct cpu *c = may_be_tcp() ? this_cpu() : NULL;
	u64 socket = (u64)sk;
	struct unread *first;

	if (!c || c->enqueues != (u64)skb)
		return 0;
	first = bpf_map_lookup_elem(&unread, &socket);
	if (first && first->seq == BPF_CORE_READ(tcp, rcv_nxt)) { /* dropped: there was no room */
		bpf_map_delete_elem(&unread, &socket);
		c->enqueues = 0;
		return 0;
	}
	return enqueued((u64)skb, 0);
}

/* A datagram that is only looked at stays in the queue. */
static __always_inline int taken(struct sk_buff *skb, unsigned int flags)
{
	return skb && !(flags & MSG_PEEK) ? consume((u64)skb) : 0;
}

SEC("fexit/__skb_recv_udp")
int BPF_PROG(on_recv, struct sock *sk, unsigned int flags, int *off, int *err, struct sk_buff *skb)
{
	return taken(skb, flags);
}

/* Before Linux 5.19. */
SEC("fexit/__skb_recv_udp")
int BPF_PROG(on_recv_noblock, struct sock *sk, unsigned int flags, int noblock, int *off, int *err,
	     struct sk_buff *skb)
{
	return taken(skb, flags);
}

/*
 * For a thread that waited in __skb_recv_udp already when that was probed. Some kernels have this function
 * inlined for IPv4, so it is not enough alone. If the datagram is only looked at, len is negative.
 */
SEC("fentry/skb_consume_udp")
int BPF_PROG(on_consume, struct sock *sk, struct sk_buff *skb, int len)
{
	return len < 0 ? 0 : consume((u64)skb);
}

SEC("fentry/inet_sendmsg")
int BPF_PROG(on_sendmsg, struct socket *sock)
{
	return may_follow(sock) ? sends() : 0;
}

SEC("fexit/inet_sendmsg")
int BPF_PROG(on_sendmsg_done, struct socket *sock)
{
	return may_follow(sock) ? has_sent() : 0;
}

SEC("fentry/inet6_sendmsg")
int BPF_PROG(on_sendmsg6, struct socket *sock)
{
	return may_follow(sock) ? sends() : 0;
}

SEC("fexit/inet6_sendmsg")
int BPF_PROG(on_sendmsg6_done, struct socket *sock)
{
	return may_follow(sock) ? has_sent() : 0;
}

#endif
