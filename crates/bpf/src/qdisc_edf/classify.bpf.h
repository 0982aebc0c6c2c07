/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which channel a packet belongs to. The cost is one hash look-up for each distinct set of fields that
 * the link's channels look at (struct shape), however many channels there are.
 */
#ifndef TEIJI_QDISC_EDF_CLASSIFY_H
#define TEIJI_QDISC_EDF_CLASSIFY_H

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86DD
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88A8
#define VLANS_MAX 2
#define EXTENSIONS_MAX 4

struct headers {
	__be32 src[4], dst[4];
	__be16 sport, dport;
	u8 version;
	u8 proto;
	u8 ports; /* whether it has any: not a later fragment */
};

struct eth {
	u8 addresses[12];
	__be16 type;
};

struct vlan {
	__be16 tag;
	__be16 type;
};

struct ipv4 {
	u8 version_words;
	u8 tos;
	__be16 length, id, fragment;
	u8 ttl, proto;
	__be16 checksum;
	__be32 src, dst;
};

struct ipv6 {
	u32 flow;
	__be16 length;
	u8 next, hops;
	__be32 src[4], dst[4];
};

struct extension {
	u8 next, words;
	__be16 fragment;
};

struct ports {
	__be16 src, dst;
};

static __always_inline bool has_ports(u8 proto)
{
	/* TCP, UDP, DCCP, SCTP, UDP-Lite: all begin with the two ports */
	return proto == 6 || proto == 17 || proto == 33 || proto == 132 || proto == 136;
}

#define PLAIN (sizeof(struct eth) + sizeof(struct ipv4) + sizeof(struct ports))

/* Reads the headers of a frame; false if it is not IP or is cut off. */
static __always_inline bool read_headers(struct bpf_dynptr *frame, struct headers *h)
{
	union {
		u8 plain[PLAIN];
		struct eth eth;
		struct vlan vlan;
		struct ipv4 v4;
		struct ipv6 v6;
		struct extension extension;
		struct ports ports;
	} room;
	bool first = true;
	struct ports *ports;
	struct eth *eth;
	u32 at = sizeof(*eth);
	void *plain;
	u16 type;
	int i;

	/* most frames have neither tags nor options: one slice is enough */
	plain = bpf_dynptr_slice(frame, 0, &room, PLAIN);
	if (plain) {
		struct ipv4 *ip = plain + sizeof(*eth);

		eth = plain;
		if (eth->type == bpf_htons(ETH_P_IP) && ip->version_words == 0x45 &&
		    !(ip->fragment & bpf_htons(0x1fff)) && has_ports(ip->proto)) {
			ports = plain + sizeof(*eth) + sizeof(*ip);
			h->version = 4;
			h->proto = ip->proto;
			h->src[0] = ip->src;
			h->dst[0] = ip->dst;
			h->sport = ports->src;
			h->dport = ports->dst;
			h->ports = 1;
			return true;
		}
	}
	eth = bpf_dynptr_slice(frame, 0, &room, sizeof(*eth));
	if (!eth)
		return false;
	type = bpf_ntohs(eth->type);
	for (i = 0; i < VLANS_MAX; i++) {
		struct vlan *vlan;

		if (type != ETH_P_8021Q && type != ETH_P_8021AD)
			break;
		vlan = bpf_dynptr_slice(frame, at, &room, sizeof(*vlan));
		if (!vlan)
			return false;
		type = bpf_ntohs(vlan->type);
		at += sizeof(*vlan);
	}
	if (type == ETH_P_IP) {
		struct ipv4 *ip = bpf_dynptr_slice(frame, at, &room, sizeof(*ip));

		if (!ip || ip->version_words >> 4 != 4 || (ip->version_words & 15) < 5)
			return false;
		h->version = 4;
		h->proto = ip->proto;
		h->src[0] = ip->src;
		h->dst[0] = ip->dst;
		first = !(ip->fragment & bpf_htons(0x1fff));
		at += (ip->version_words & 15) * 4;
	} else if (type == ETH_P_IPV6) {
		struct ipv6 *ip = bpf_dynptr_slice(frame, at, &room, sizeof(*ip));

		if (!ip)
			return false;
		h->version = 6;
		h->proto = ip->next;
		for (i = 0; i < 4; i++) {
			h->src[i] = ip->src[i];
			h->dst[i] = ip->dst[i];
		}
		at += sizeof(*ip);
		for (i = 0; i < EXTENSIONS_MAX; i++) {
			struct extension *e;

			/* hop-by-hop, routing, fragment, destination */
			if (h->proto != 0 && h->proto != 43 && h->proto != 44 && h->proto != 60)
				break;
			e = bpf_dynptr_slice(frame, at, &room, sizeof(*e));
			if (!e)
				return false;
			if (h->proto == 44)
				first &= !(e->fragment & bpf_htons(0xfff8));
			at += h->proto == 44 ? 8 : ((u32)e->words + 1) * 8;
			h->proto = e->next;
			if (!first)
				break;
		}
	} else {
		return false;
	}
	if (!first || !has_ports(h->proto))
		return true;
	ports = bpf_dynptr_slice(frame, at, &room, sizeof(*ports));
	if (ports) {
		h->sport = ports->src;
		h->dport = ports->dst;
		h->ports = 1;
	}
	return true;
}

/* The channel that the packet belongs to, NULL if none. */
static __always_inline struct channel_settings *classify(const struct link_settings *link,
							 const struct headers *h)
{
	struct channel_settings *found = NULL;
	u32 i;

	/* not bpf_for: it makes a call for each iteration */
	for (i = 0; i < MAX_SHAPES; i++) {
		const struct shape *s;
		struct match_key key = {};
		u32 k;

		if (i >= link->shapes)
			break;
		s = &link->shape[i];
		if (s->version != h->version || (s->ports && !h->ports))
			continue;
		key.link = link->id;
		key.shape = s->tag;
		key.version = h->version;
		key.proto = h->proto & s->proto;
		key.sport = h->sport & s->sport;
		key.dport = h->dport & s->dport;
		for (k = 0; k < 4; k++) {
			key.src[k] = h->src[k] & s->src[k];
			key.dst[k] = h->dst[k] & s->dst[k];
		}
		found = bpf_map_lookup_elem(&matches, &key);
		if (found)
			break;
	}
	return found;
}

#endif
