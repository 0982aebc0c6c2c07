// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * qdisc_edf: earliest deadline first over the channels of a link, fair sharing among the rest.
 *
 *                      in its rate             ┌─ rt: rbtree by deadline ─┐
 *   packet ─► classify ─────────────────────►  │                          │ ─► pace ─► device
 *                 │ no channel, or in excess   └─ be: rbtree by service ──┘
 *                 └─────────────────────────►
 *
 * A packet's deadline is its arrival plus its channel's deadline. Of the packets within their channel's
 * token bucket (and within the bucket of all channels, if the link has one) the packet with the earliest
 * deadline is sent first. Best effort goes before it while there is slack: while the earliest deadline,
 * minus the time that all queued real-time packets take, is further away than the link's slack.
 *
 * Packets that exceed a token bucket are counted and sent as best effort, so they delay no other channel.
 *
 * Best effort is shared by start-time fair queueing (Goyal, Vin, Cheng 1997): a packet starts where the
 * last one of its flow ends, or at the current service, and the earliest start goes first. One tree is
 * enough, and flows get equal bytes. A packet of a flow is dropped if the flow already holds as many bytes
 * as are still free (dynamic thresholds, Choudhury and Hahne 1998): no flow fills the queue alone, and no
 * search for the longest flow is needed.
 *
 * A packet that finds the queue empty is kept outside the trees, and is inserted only if another one
 * arrives before it has left: on a link that is not overloaded this is rare.
 *
 * The link is paced: a frame takes (length + overhead) / rate, and the next one leaves after that. If the
 * link was idle or a timer was late, at most `credit` of that time is made up for: the next one then leaves
 * while the one before is on the wire, and its delay counts from the end of that one (sent.bpf.h).
 *
 * The agent's heartbeat is in `heartbeat`. Without a heartbeat for 2 s:
 *
 *   deadlines ──(heartbeat lost)───► FIFO: what is queued goes first, deadlines before best effort, then
 *       ▲                            arrivals in their order; neither paced nor bounded by channels
 *       └──────(heartbeat)───────────┘
 *
 * Limits: root qdisc of Ethernet devices only, not below mq; one lock for all of a device's transmit
 * queues; a GSO packet is one packet, and blocks the link for as long as all of it takes. A deadline
 * applies to the last bit at the link's rate, as if the device sent at once what it is given; if no rate
 * is set it applies to leaving this queue. Packets of one flow are reordered when some of them exceed the
 * channel's rate, and when the qdisc falls back to FIFO or returns from it. A changed rate or slack applies
 * to packets that arrive afterwards; a rate that was removed takes effect at once. The bounds of the tables
 * are in intf.h.
 *
 * Assumes: the kernel calls every program under the qdisc's lock, so that a link's state has one writer.
 *
 * Needs Linux 6.16 with CONFIG_NET_SCH_BPF. By hand (it refuses links without a slot):
 *   bpftool struct_ops register qdisc_edf.bpf.o /sys/fs/bpf; tc qdisc add dev X root teiji_edf
 */
#include "kernel.h"
#include "intf.h"
#include "maps.bpf.h"
#include "classify.bpf.h"
#include "sent.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define SECOND 1000000000ULL
#define QUEUED_MAX (1 << 23) /* loops end; limit_packets is far below */

/*
 * The qdisc's slot. Qdisc.limit holds the slot plus one, or 0 if there is none. A BPF qdisc has no private
 * data, and this is the only field that it may write and that the kernel does not use.
 */
static __always_inline u32 slot_of(struct Qdisc *sch)
{
	return sch->limit - 1;
}

/* The state of the link; NULL if the qdisc has no slot, as slot_of() is then beyond the end of the map. */
static __always_inline struct link_state *state_of(struct Qdisc *sch)
{
	u32 slot = slot_of(sch);

	return bpf_map_lookup_elem(&states, &slot);
}

/* The settings of the link that are in use now. */
static __always_inline struct link_settings *settings_of(struct Qdisc *sch)
{
	u32 slot = slot_of(sch), *which = bpf_map_lookup_elem(&current, &slot);

	if (!which)
		return NULL;
	slot = slot * SETTINGS_PER_LINK + *which;
	return bpf_map_lookup_elem(&settings, &slot);
}

static bool earlier(struct bpf_rb_node *a, const struct bpf_rb_node *b)
{
	struct packet *left = container_of(a, struct packet, node);
	struct packet *right = container_of(b, struct packet, node);

	return left->is.key < right->is.key;
}

static __always_inline u32 segments(struct sk_buff *skb, struct qdisc_skb_cb *cb)
{
	struct skb_shared_info *info;
	u16 segs = 0;

	if (bpf_core_field_exists(cb->pkt_segs)) {
		segs = cb->pkt_segs;
	} else {
		info = (void *)skb->head + skb->end;
		bpf_core_read(&segs, sizeof(segs), &info->gso_segs);
	}
	return segs ?: 1;
}

/*
 * A token bucket as a virtual clock: `due` is when it will be full again. Returns when it would be full after
 * taking `len` bytes, 0 if they exceed it.
 */
static __always_inline u64 conform(u64 due, u64 now, u64 rate, u64 burst, u32 len)
{
	u64 then;

	if (!rate)
		return 0;
	then = max(due, now) + len * SECOND / rate;
	return then - now <= burst * SECOND / rate ? then : 0;
}

/* Whether the packet is within its channel's rate and the rate of all channels; takes the tokens if it is. */
static __always_inline bool admit(const struct link_settings *link, struct link_state *st,
				  const struct channel_settings *channel, struct channel_state *cs, u64 now,
				  u32 len)
{
	u64 due = conform(cs->due, now, channel->rate, channel->burst, len);
	u64 rt_due = 0;

	if (!due) {
		cs->stats.excess++;
		cs->stats.excess_bytes += len;
		return false;
	}
	if (link->rt_rate) {
		rt_due = conform(st->rt_due, now, link->rt_rate, link->rt_burst, len);
		if (!rt_due) {
			cs->stats.excess++;
			cs->stats.excess_bytes += len;
			st->stats.capped++;
			return false;
		}
		st->rt_due = rt_due;
	}
	cs->due = due;
	return true;
}

/* Inserts a packet into its tree, which owns it from then on. */
static __always_inline void tree_insert(struct link_state *st, struct packet *p)
{
	if (p->is.channel != NO_CHANNEL) {
		bpf_spin_lock(&st->lock);
		bpf_rbtree_add_impl(&st->rt, &p->node, earlier, NULL, 0);
		bpf_spin_unlock(&st->lock);
	} else {
		bpf_spin_lock(&st->lock);
		bpf_rbtree_add_impl(&st->be, &p->node, earlier, NULL, 0);
		bpf_spin_unlock(&st->lock);
	}
}

/* Inserts the packet that is in no tree (`only`) into the tree it belongs to; false without memory for it. */
static __always_inline bool tree_insert_only(struct link_state *st, struct bpf_sk_buff_ptr *to_free)
{
	struct packet *p = bpf_obj_new_impl(bpf_core_type_id_local(struct packet), NULL);
	struct sk_buff *skb;

	if (!p)
		return false;
	p->is = st->only_is;
	st->single = 0;
	skb = bpf_kptr_xchg(&st->only, NULL);
	if (!skb) {
		bpf_obj_drop_impl(p, NULL);
		return true;
	}
	skb = bpf_kptr_xchg(&p->skb, skb);
	if (skb)
		bpf_qdisc_skb_drop(skb, to_free);
	tree_insert(st, p);
	return true;
}

SEC("struct_ops/edf_enqueue")
int BPF_PROG(edf_enqueue, struct sk_buff *skb, struct Qdisc *sch, struct bpf_sk_buff_ptr *to_free)
{
	struct qdisc_skb_cb *cb = (struct qdisc_skb_cb *)skb->cb;
	struct channel_settings *channel = NULL;
	struct channel_state *cs = NULL;
	struct link_settings *link;
	struct headers headers = {};
	struct link_state *st;
	struct bpf_dynptr frame;
	struct queued is;
	struct packet *p;
	struct flow *flow = NULL;
	u32 kernel_len, len, segs, hash = 0, id = NO_CHANNEL;
	u64 now, order, tx, deadline = 0;
	bool real_time = false, fallback;

	link = settings_of(sch);
	st = state_of(sch);
	if (!link || !st)
		goto drop;
	now = bpf_ktime_get_ns();
	fallback = heartbeat_missing(now);
	if (fallback && !st->fallback)
		st->stats.fallbacks++;
	st->fallback = fallback;

	kernel_len = cb->pkt_len;
	segs = segments(skb, cb);
	/* the kernel does not count a VLAN tag that the device will add */
	len = max(kernel_len + (skb->vlan_all ? 4 * segs : 0), (u64)link->min_frame) + segs * link->overhead;
	tx = link->rate ? len * SECOND / link->rate : 0;

	if (!fallback && link->shapes) {
		if (!bpf_dynptr_from_skb((struct __sk_buff *)skb, 0, &frame) &&
		    read_headers(&frame, &headers))
			channel = classify(link, &headers);
		if (channel) {
			id = channel->id;
			deadline = channel->deadline;
			cs = bpf_map_lookup_elem(&channels, &id);
		}
		if (cs)
			real_time = admit(link, st, channel, cs, now, len);
	}

	if (real_time) {
		if (st->rt_bytes + len > link->limit_bytes || st->stats.rt_queued >= link->limit_packets) {
			st->stats.rt_drops++;
			goto drop_channel;
		}
		order = now + deadline;
	} else {
		hash = bpf_skb_get_hash(skb) & (FLOWS - 1);
		flow = &st->flow[hash];
		/* a flow may hold at most as much as is free, so there is always room for others */
		if (st->be_bytes + len > link->limit_bytes || st->stats.be_queued >= link->limit_packets ||
		    (!fallback && flow->bytes + st->be_bytes > link->limit_bytes)) {
			st->stats.be_drops++;
			goto drop_channel;
		}
		if (!st->stats.be_queued)
			st->service = st->finish;
		order = fallback ? st->finish : max(st->service, flow->finish);
	}

	is.key = order;
	is.arrival = now;
	is.tx = tx;
	is.len = len;
	is.channel = real_time ? id : NO_CHANNEL;
	is.flow = hash;
	is.kernel_len = kernel_len;
	if (!st->stats.rt_queued && !st->stats.be_queued) {
		st->only_is = is;
		st->single = 1;
		skb = bpf_kptr_xchg(&st->only, skb);
		if (skb)
			bpf_qdisc_skb_drop(skb, to_free);
	} else {
		p = NULL;
		if (!st->single || tree_insert_only(st, to_free))
			p = bpf_obj_new_impl(bpf_core_type_id_local(struct packet), NULL);
		if (!p) {
			if (real_time)
				st->stats.rt_drops++;
			else
				st->stats.be_drops++;
			goto drop_channel;
		}
		p->is = is;
		skb = bpf_kptr_xchg(&p->skb, skb);
		if (skb)
			bpf_qdisc_skb_drop(skb, to_free);
		tree_insert(st, p);
	}

	st->rate = link->unpaced ? 0 : link->rate;
	st->slack = link->slack;
	st->credit = link->credit;
	sch->q.qlen++;
	sch->qstats.backlog += kernel_len;
	if (real_time) {
		st->rt_bytes += len;
		st->rt_time += tx;
		st->stats.rt_queued++;
	} else if (flow) {
		flow->finish = order + len;
		flow->bytes += len;
		st->finish = max(st->finish, order + len);
		st->be_bytes += len;
		st->stats.be_queued++;
		st->stats.largest = max(st->stats.largest, len);
	}
	return NET_XMIT_SUCCESS;

drop_channel:
	if (cs)
		cs->stats.drops++;
drop:
	sch->qstats.drops++;
	bpf_qdisc_skb_drop(skb, to_free);
	return NET_XMIT_DROP;
}

SEC("struct_ops/edf_dequeue")
struct sk_buff *BPF_PROG(edf_dequeue, struct Qdisc *sch)
{
	struct link_settings *link;
	struct sk_buff *skb = NULL;
	struct bpf_rb_node *node;
	struct link_state *st;
	struct queued is;
	struct packet *p;
	u64 now, urgent_until, end, *wire;
	u32 slot = slot_of(sch);
	bool fallback, be_first, paced;

	if (!sch->q.qlen)
		return NULL;
	st = state_of(sch);
	wire = bpf_map_lookup_elem(&wire_free, &slot);
	if (!st || !wire)
		return NULL;
	now = bpf_ktime_get_ns();
	fallback = heartbeat_missing(now);
	if (fallback && !st->fallback)
		st->stats.fallbacks++;
	st->fallback = fallback;
	if (!fallback && st->rate && now < st->next_free) {
		/* a rate that was removed takes effect at once, without waiting for an arrival */
		link = settings_of(sch);
		if (!link || (link->rate && !link->unpaced)) {
			bpf_qdisc_watchdog_schedule(sch, st->next_free, 0);
			return NULL;
		}
		st->rate = 0;
	}

	if (st->single) {
		st->single = 0;
		is = st->only_is;
		skb = bpf_kptr_xchg(&st->only, NULL);
	} else {
		/* real time goes first if its earliest deadline is not after this */
		urgent_until = now + st->rt_time + st->slack;
		be_first = !fallback && st->stats.be_queued;

		bpf_spin_lock(&st->lock);
		node = bpf_rbtree_first(&st->rt);
		if (node) {
			p = container_of(node, struct packet, node);
			if (be_first && p->is.key > urgent_until)
				node = NULL;
		}
		if (node) {
			node = bpf_rbtree_remove(&st->rt, node);
		} else {
			node = bpf_rbtree_first(&st->be);
			if (node)
				node = bpf_rbtree_remove(&st->be, node);
		}
		bpf_spin_unlock(&st->lock);
		if (!node)
			return NULL;
		p = container_of(node, struct packet, node);
		is = p->is;
		skb = bpf_kptr_xchg(&p->skb, NULL);
		bpf_obj_drop_impl(p, NULL);
	}

	sch->q.qlen--;
	sch->qstats.backlog -= is.kernel_len;
	paced = !fallback && st->rate;
	end = last_bit(*wire, now, is.tx, paced);
	*wire = end;
	st->next_free = next_after(st->next_free, st->credit, now, is.tx, paced);
	if (is.channel != NO_CHANNEL) {
		st->rt_bytes -= is.len;
		st->rt_time -= is.tx;
		st->stats.rt_queued--;
		st->stats.rt_packets++;
		st->stats.rt_bytes += is.len;
		account_sent(&is, end);
	} else {
		st->flow[is.flow & (FLOWS - 1)].bytes -= is.len;
		st->be_bytes -= is.len;
		st->stats.be_queued--;
		st->stats.be_packets++;
		st->stats.be_bytes += is.len;
		st->service = max(st->service, is.key);
	}
	if (fallback)
		st->stats.fallback_packets++;
	if (skb)
		bpf_qdisc_bstats_update(sch, skb);
	return skb;
}

/* Changes the number of links that have the qdisc. */
static __always_inline void count_user(s64 by)
{
	u32 zero = 0;
	u64 *n = bpf_map_lookup_elem(&users, &zero);

	if (n)
		__sync_fetch_and_add(n, by);
}

SEC("struct_ops/edf_init")
int BPF_PROG(edf_init, struct Qdisc *sch, struct nlattr *opt, struct netlink_ext_ack *extack)
{
	struct net_device *dev = sch->dev_queue->dev;
	struct link_key key = {};
	struct link_state *st;
	u32 *slot;

	/* if this fails the kernel calls edf_destroy: the qdisc has no slot then */
	if (sch->parent != TC_H_ROOT)
		return -EOPNOTSUPP;
	if (dev->type != ARPHRD_ETHER)
		return -EINVAL;
	key.netns = dev->nd_net.net->net_cookie;
	key.ifindex = dev->ifindex;
	slot = bpf_map_lookup_elem(&slots, &key);
	if (!slot)
		return -ENODEV;
	st = bpf_map_lookup_elem(&states, slot);
	if (!st)
		return -ENODEV;
	/* two qdiscs of one device have two locks, so the state would have two writers */
	if (st->owner)
		return -EBUSY;
	st->owner = (u64)sch;
	sch->limit = *slot + 1;
	count_user(1);
	return 0;
}

SEC("struct_ops/edf_reset")
void BPF_PROG(edf_reset, struct Qdisc *sch)
{
	struct link_state *st = state_of(sch);
	struct bpf_rb_node *node;
	struct sk_buff *skb;
	u32 slot = slot_of(sch);
	u64 *wire = bpf_map_lookup_elem(&wire_free, &slot);
	int i;

	if (!st)
		return;
	if (wire)
		*wire = 0;
	st->single = 0;
	skb = bpf_kptr_xchg(&st->only, NULL);
	if (skb)
		bpf_kfree_skb(skb);
	bpf_for(i, 0, QUEUED_MAX)
	{
		bpf_spin_lock(&st->lock);
		node = bpf_rbtree_first(&st->rt);
		if (node) {
			node = bpf_rbtree_remove(&st->rt, node);
		} else {
			node = bpf_rbtree_first(&st->be);
			if (node)
				node = bpf_rbtree_remove(&st->be, node);
		}
		bpf_spin_unlock(&st->lock);
		if (!node)
			break;
		/* this frees the packet's skb, too */
		bpf_obj_drop_impl(container_of(node, struct packet, node), NULL);
	}
	bpf_for(i, 0, FLOWS)
	{
		st->flow[i & (FLOWS - 1)].bytes = 0;
	}
	st->rt_bytes = 0;
	st->be_bytes = 0;
	st->rt_time = 0;
	st->next_free = 0;
	st->stats.rt_queued = 0;
	st->stats.be_queued = 0;
	sch->q.qlen = 0;
	sch->qstats.backlog = 0;
}

SEC("struct_ops/edf_destroy")
void BPF_PROG(edf_destroy, struct Qdisc *sch)
{
	struct link_state *st = state_of(sch);

	if (st) {
		sch->limit = 0;
		st->owner = 0;
		count_user(-1);
	}
}

SEC(".struct_ops.link")
struct Qdisc_ops edf = {
    .id = "teiji_edf",
    .enqueue = (void *)edf_enqueue,
    .dequeue = (void *)edf_dequeue,
    .init = (void *)edf_init,
    .reset = (void *)edf_reset,
    .destroy = (void *)edf_destroy,
};
