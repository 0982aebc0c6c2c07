/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Recognising a packet: its fingerprint, its part in a request, whose it is, and whether the operator's
 * filter lets it pass.
 */
#ifndef TEIJI_PACKET_BPF_H
#define TEIJI_PACKET_BPF_H

#define ETH_HLEN 14
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86DD
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88A8
#define PROTO_ICMP 1
#define PROTO_TCP 6
#define PROTO_UDP 17
#define PROTO_ICMPV6 58
#define PAYLOAD_HASHED 64 /* bytes of UDP payload that take part in the fingerprint */

struct packet {
	u64 fingerprint;
	u64 key;
	u32 len; /* of the frame */
	u8 role;
	u8 proto;
	bool to_guest;
	u16 payload_len; /* UDP, of the linear part */
	const unsigned char *payload;
};

struct address {
	u32 word[4];
};

struct endpoints {
	struct address src, dst;
	u16 sport, dport;
	u8 version, proto;
};

/* The lesser of two, in a form that no compiler takes apart and the verifier therefore understands. */
static __always_inline u64 at_most(u64 n, u64 most)
{
	barrier_var(n);
	if (n > most)
		n = most;
	barrier_var(n);
	return n;
}

static __always_inline u64 mix(u64 h, u64 word)
{
	h = (h ^ word) * 0x9fb21c651e98df25ULL;
	return h ^ (h >> 32);
}

static __always_inline u64 hash_address(const struct address *a)
{
	u64 h = settings.seed;

	h = mix(h, (u64)a->word[0] << 32 | a->word[1]);
	return mix(h, (u64)a->word[2] << 32 | a->word[3]);
}

static __always_inline bool in_net(const volatile struct filter_net *n, const struct address *a)
{
	return (a->word[0] & n->mask[0]) == n->addr[0] && (a->word[1] & n->mask[1]) == n->addr[1] &&
	       (a->word[2] & n->mask[2]) == n->addr[2] && (a->word[3] & n->mask[3]) == n->addr[3];
}

/* The operator's filter. "src" is the requester, whichever way the packet goes. */
static __always_inline bool passes(const struct endpoints *e, bool to_guest)
{
	int i;

	if (settings.version && settings.version != e->version)
		return false;
	if (settings.proto && settings.proto != e->proto &&
	    !(settings.proto == PROTO_ICMP && e->proto == PROTO_ICMPV6))
		return false;
	for (i = 0; i < MAX_NETS; i++) {
		const volatile struct filter_net *n = &settings.net[i];
		bool src, dst;

		if (i >= settings.nets)
			break;
		if (n->version != e->version)
			return false;
		src = in_net(n, to_guest ? &e->src : &e->dst);
		dst = in_net(n, to_guest ? &e->dst : &e->src);
		if (n->end == END_SRC ? !src : n->end == END_DST ? !dst : !(src || dst))
			return false;
	}
	for (i = 0; i < MAX_PORTS; i++) {
		const volatile struct filter_port *p = &settings.port[i];
		bool src, dst;

		if (i >= settings.ports)
			break;
		src = p->port == (to_guest ? e->sport : e->dport);
		dst = p->port == (to_guest ? e->dport : e->sport);
		if (p->end == END_SRC ? !src : p->end == END_DST ? !dst : !(src || dst))
			return false;
	}
	return true;
}

static __always_inline bool is_guest_mac(const u8 *addr)
{
	struct mac m = {};

	if (!hinted((u32)addr[4] << 8 | addr[5], HINT_MAC))
		return false;
	__builtin_memcpy(m.addr, addr, 6);
	return bpf_map_lookup_elem(&macs, &m);
}

/*
 * Identifies a packet that starts at l2 and whose linear part ends at end. known: the point is a tap's, so
 * that the direction is to_guest; otherwise it is wanted to be to_guest, and the MAC addresses tell, if they
 * can.
 *
 * The fingerprint covers what neither forwarding nor checksum offload changes: addresses, protocol,
 * ports, IP id, length, and for UDP the first 64 bytes of payload, for TCP sequence, acknowledgement and
 * flags, for ICMP the message's header. The UDP checksum is left out: a guest that offloads it sends the
 * pseudo-header's sum, which is alike for all its packets, and the host may complete it on the way. The
 * payload takes its place, because UDP senders commonly leave the IP id 0 (ip_select_ident with DF set).
 *
 * Returns false for packets that are not the traced guests', that the filter turns down, or that cannot
 * be identified (counted).
 */
static __always_inline bool parse(const unsigned char *l2, const unsigned char *end, bool known,
				  bool to_guest, struct packet *p)
{
	const unsigned char *at = l2 + ETH_HLEN;
	struct endpoints e = {};
	u64 h = settings.seed, ends_src, ends_dst;
	u16 ether;
	int i;
	struct {
		u8 dst[6], src[6];
		__be16 proto;
	} eth;

	if (l2 + ETH_HLEN > end || bpf_probe_read_kernel(&eth, ETH_HLEN, l2))
		goto unidentified;
	if (!known) {
		if (settings.by_mac) {
			/* towards a guest if it is the destination, from one if only the source is */
			if (to_guest ? !is_guest_mac(eth.dst)
				     : !is_guest_mac(eth.src) || is_guest_mac(eth.dst))
				return false;
		}
	}
	if (!(settings.directions & (to_guest ? DIR_IN : DIR_OUT)))
		return false;

	ether = bpf_ntohs(eth.proto);
	for (i = 0; i < 2 && (ether == ETH_P_8021Q || ether == ETH_P_8021AD); i++) {
		__be16 inner;

		if (at + 4 > end || bpf_probe_read_kernel(&inner, 2, at + 2))
			goto unidentified;
		ether = bpf_ntohs(inner);
		at += 4;
	}

	if (ether == ETH_P_IP) {
		struct {
			u8 ihl_version, tos;
			__be16 tot_len, id, frag;
			u8 ttl, proto;
			__be16 check;
			u32 src, dst;
		} ip;
		u32 ihl;

		if (at + sizeof(ip) > end || bpf_probe_read_kernel(&ip, sizeof(ip), at))
			goto unidentified;
		ihl = (ip.ihl_version & 15) * 4;
		if (ip.ihl_version >> 4 != 4 || ihl < sizeof(ip))
			goto unidentified;
		e.version = 4;
		e.proto = ip.proto;
		e.src.word[0] = ip.src;
		e.dst.word[0] = ip.dst;
		h = mix(h, (u64)ip.src << 32 | ip.dst);
		h = mix(h, (u64)ip.id << 48 | (u64)(ip.frag & bpf_htons(0x1fff)) << 32 | (u64)ip.proto << 16 |
			       bpf_ntohs(ip.tot_len));
		at += ihl;
		if (ip.frag & bpf_htons(0x1fff)) { /* a later fragment has no ports */
			if (settings.ports || !passes(&e, to_guest))
				return false;
			goto identified;
		}
	} else if (ether == ETH_P_IPV6) {
		struct {
			__be32 flow;
			__be16 len;
			u8 next, hops;
			struct address src, dst;
		} ip;

		if (at + sizeof(ip) > end || bpf_probe_read_kernel(&ip, sizeof(ip), at))
			goto unidentified;
		e.version = 6;
		e.proto = ip.next;
		e.src = ip.src;
		e.dst = ip.dst;
		h = mix(h, hash_address(&ip.src));
		h = mix(h, hash_address(&ip.dst));
		h = mix(h, (u64)ip.flow << 32 | (u64)ip.next << 16 | bpf_ntohs(ip.len));
		at += sizeof(ip);
	} else {
		return false; /* ARP and the like belong to no request */
	}

	if (e.proto == PROTO_UDP) {
		struct {
			__be16 sport, dport, len, check;
		} udp;
		u64 payload[PAYLOAD_HASHED / 8] = {}, n;

		if (at + sizeof(udp) > end || bpf_probe_read_kernel(&udp, sizeof(udp), at))
			goto unidentified;
		e.sport = bpf_ntohs(udp.sport);
		e.dport = bpf_ntohs(udp.dport);
		if (!passes(&e, to_guest))
			return false;
		at += sizeof(udp);
		/* the frame may be padded, and the datagram may be longer than the linear part */
		n = bpf_ntohs(udp.len);
		n = at_most(n > sizeof(udp) ? n - sizeof(udp) : 0, at < end ? end - at : 0);
		p->payload = at;
		p->payload_len = n;
		n = at_most(n, PAYLOAD_HASHED);
		if (n && bpf_probe_read_kernel(payload, n, at))
			goto unidentified;
		h = mix(h, (u64)udp.sport << 16 | udp.dport);
		p->key = settings.seed;
		for (i = 0; i < PAYLOAD_HASHED / 8; i++)
			p->key = mix(p->key, payload[i]);
		h = mix(h, p->key);
		if (settings.matching == MATCH_ECHO) {
			ends_src = mix(hash_address(&e.src), e.sport);
			ends_dst = mix(hash_address(&e.dst), e.dport);
			/* alike both ways */
			p->key = mix(mix(p->key, ends_src + ends_dst), udp.len);
			p->role = ROLE_EITHER;
		}
	} else if (e.proto == PROTO_TCP) {
		struct {
			__be16 sport, dport;
			__be32 seq, ack;
			__be16 flags;
		} tcp;

		if (at + 14 > end || bpf_probe_read_kernel(&tcp, 14, at))
			goto unidentified;
		e.sport = bpf_ntohs(tcp.sport);
		e.dport = bpf_ntohs(tcp.dport);
		if (!passes(&e, to_guest))
			return false;
		h = mix(h, (u64)tcp.sport << 48 | (u64)tcp.dport << 32 | tcp.flags);
		h = mix(h, (u64)tcp.seq << 32 | tcp.ack);
	} else if (e.proto == PROTO_ICMP || e.proto == PROTO_ICMPV6) {
		struct {
			u8 type, code;
			__be16 check, id, seq;
		} icmp;
		bool request, reply;

		if (!passes(&e, to_guest))
			return false;
		if (at + sizeof(icmp) > end || bpf_probe_read_kernel(&icmp, sizeof(icmp), at))
			goto unidentified;
		h = mix(h, (u64)icmp.type << 56 | (u64)icmp.code << 48 | (u64)icmp.check << 32 |
			       (u64)icmp.id << 16 | icmp.seq);
		request = e.proto == PROTO_ICMP ? icmp.type == 8 : icmp.type == 128;
		reply = e.proto == PROTO_ICMP ? icmp.type == 0 : icmp.type == 129;
		if (settings.matching == MATCH_ECHO && (request || reply)) {
			p->key = mix(hash_address(&e.src) + hash_address(&e.dst),
				     (u64)icmp.id << 16 | icmp.seq | 1ULL << 63);
			p->role = request ? ROLE_REQUEST : ROLE_FINAL;
		}
	} else {
		if (settings.ports || !passes(&e, to_guest))
			return false;
		h = mix(h, e.proto);
	}
identified:
	p->fingerprint = h ? h : 1;
	p->proto = e.proto;
	p->to_guest = to_guest;
	return true;
unidentified:
	count(COUNT_UNIDENTIFIED);
	return false;
}

#endif
