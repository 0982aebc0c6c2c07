/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets that the kernel drops: kfree_skb, which is not called for packets that were consumed normally. It
 * is called for copies as well. Copies that packet sockets discard are left out here; the analysis handles
 * all others.
 */
#ifndef TEIJI_DROPS_BPF_H
#define TEIJI_DROPS_BPF_H

/* Only the names matter: the values are those of the running kernel. */
enum skb_drop_reason {
	SKB_DROP_REASON_NOT_SPECIFIED,
	SKB_DROP_REASON_OTHERHOST,
	SKB_DROP_REASON_PACKET_SOCK_ERROR,
	SKB_DROP_REASON_QUEUE_PURGE,
};

#define PACKET_OUTGOING 4 /* linux/if_packet.h: a sniffer's copy of a packet that is sent */
#define NO_MAC_HEADER 0xffff

#define IS_REASON(reason, which)                                                                             \
	(bpf_core_enum_value_exists(enum skb_drop_reason, which) &&                                          \
	 (reason) == (u32)bpf_core_enum_value(enum skb_drop_reason, which))

/* The function around a return address, offset and module. Not among the settings, which are .rodata. */
static const char return_address[] SEC(".rodata.formats") = "%pB";

/* Names of places by address: looking one up in the kernel's symbols for each packet of a flood would cost
 * too much. */
struct drop_location {
	char name[DROP_LOCATION];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 256);
	__type(key, u64);
	__type(value, struct drop_location);
} drop_locations SEC(".maps");

/* The traced tap to whose guest a frame is addressed, 0 if there is none. */
static __always_inline u32 tap_of(const unsigned char *l2)
{
	struct mac m = {};
	u32 *tap;

	if (bpf_probe_read_kernel(m.addr, 6, l2))
		return 0;
	tap = bpf_map_lookup_elem(&macs, &m);
	return tap ? *tap : 0;
}

static __always_inline void fill_drop(struct rec_drop *r, struct packet *p, u64 now, u32 ifindex, u32 tap,
				      u32 why, void *location)
{
	u64 at = (u64)location;
	struct drop_location *known;

	fill_head(&r->packet.head, now, REC_DROP, 0, ifindex);
	r->packet.fingerprint = p->fingerprint;
	r->packet.len = p->len;
	r->packet.tid = current_tid();
	r->key = p->key;
	r->role = p->role;
	r->unspecified = IS_REASON(why, SKB_DROP_REASON_NOT_SPECIFIED);
	r->snap = 0;
	r->why = why;
	r->tap = tap;
	known = bpf_map_lookup_elem(&drop_locations, &at);
	if (known) {
		__builtin_memcpy(r->location, known->name, sizeof(r->location));
	} else {
		struct drop_location fresh = {};
		/* %pB looks up the byte before; net_tx_action() passes its own first byte as return address
		 */
		u64 after = at + 1;

		bpf_snprintf(fresh.name, sizeof(fresh.name), return_address, &after, sizeof(after));
		bpf_map_update_elem(&drop_locations, &at, &fresh, BPF_ANY);
		__builtin_memcpy(r->location, fresh.name, sizeof(r->location));
	}
}

/* Linux 5.17 added the reason; later kernels have more arguments after it. */
SEC("tp_btf/kfree_skb")
int BPF_PROG(on_drop, struct sk_buff *skb, void *location, u32 why)
{
	struct net_device *dev = READ(skb, dev);
	u16 mac_header = READ(skb, mac_header);
	struct packet p = {};
	const unsigned char *l2, *data;
	u32 ifindex, tap;
	u64 now, n;

	if (!dev || mac_header == NO_MAC_HEADER)
		return 0;
	/* for an skb in a socket's queue, `dev` shares its place with other data: no index can be read
	 * then */
	ifindex = READ(dev, ifindex);
	if (!ifindex || BPF_CORE_READ_BITFIELD_PROBED(skb, pkt_type) == PACKET_OUTGOING)
		return 0;
	if (IS_REASON(why, SKB_DROP_REASON_OTHERHOST) || IS_REASON(why, SKB_DROP_REASON_PACKET_SOCK_ERROR) ||
	    IS_REASON(why, SKB_DROP_REASON_QUEUE_PURGE))
		return 0;
	now = bpf_ktime_get_ns();
	l2 = READ(skb, head) + mac_header;
	data = READ(skb, data);
	n = READ(skb, len);
	p.len = n + (data - l2);
	n -= READ(skb, data_len);
	if (!parse(l2, data + n, TO_GUEST | KEYED, &p) && !parse(l2, data + n, KEYED, &p))
		return 0;
	tap = followed.by_mac ? p.to_guest ? tap_of(l2) : 0 : 0;

	if (settings.matching == MATCH_SIP && p.proto == PROTO_UDP) {
		struct rec_drop_sip *r = reserve(sizeof(*r));

		if (!r)
			return 0;
		fill_drop(&r->drop, &p, now, ifindex, tap, why, location);
		n = at_most(p.payload_len, SIP_SNAP);
		if (bpf_probe_read_kernel(r->payload, n, p.payload))
			n = 0;
		r->drop.snap = n;
		submit(r);
	} else {
		struct rec_drop *r;

		match_payload(&p);
		r = reserve(sizeof(*r));
		if (!r)
			return 0;
		fill_drop(r, &p, now, ifindex, tap, why, location);
		if (settings.matching == MATCH_TCP && p.proto == PROTO_TCP)
			r->role = read_segment(&p, &r->segment);
		submit(r);
	}
	return 0;
}

#endif
