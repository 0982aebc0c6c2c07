/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Identifies a packet by a hash of its headers and the first bytes of its payload: its fingerprint. Also its
 * role in a request, and whether it passes the operator's filter. The host's program and the guest's share
 * this, so that both give one packet the same fingerprint if they have the same secret.
 *
 * The includer has the types of path_trace/intf.h, a constant `settings` of the type struct settings,
 * count(), which is told of packets that cannot be identified, and reports(), which is declared below.
 */
#ifndef TEIJI_PACKET_HASH_BPF_H
#define TEIJI_PACKET_HASH_BPF_H

#include "read.bpf.h"

#define ETH_HLEN 14
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86DD
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88A8
#define PROTO_ICMP 1
#define PROTO_TCP 6
#define PROTO_UDP 17
#define PROTO_ICMPV6 58
#define PAYLOAD_HASHED 64     /* bytes of UDP payload that take part in the fingerprint */
#define TCP_LENGTH_HASHED 255 /* the longest segment, header included, whose length takes part in it */
#define TCP_FIN_PSH 0x0009

struct packet {
	u64 fingerprint;
	u64 key;
	u64 received; /* when the host received it, ns of the trace's clock; 0: not at that point */
	u32 len;      /* of the frame */
	u8 role;
	u8 proto;
	bool to_guest;
	u16 payload_len;	      /* UDP, of the linear part; TCP: with its header, whole */
	u16 headers;		      /* UDP, TCP: bytes of the frame before the payload */
	u16 segments;		      /* see count_segments() */
	const unsigned char *payload; /* TCP: its header */
};

struct address {
	u32 word[4];
};

struct endpoints {
	struct address src, dst;
	u16 sport, dport;
	u8 version, proto;
};

/* Whether a segment of TCP belongs to a connection by which a guest reports: teiji's own is not followed. */
static __always_inline bool reports(const struct endpoints *e, bool to_guest);

/* An end of a connection, in numbers: those of an address are in pairs. */
struct flow_end {
	u64 first, last;
	u32 port, version;
};

/* The end of a segment that is the guest's. */
static __always_inline struct flow_end end_of_guest(const struct endpoints *e, bool to_guest)
{
	const u32 *word = to_guest ? e->dst.word : e->src.word;
	struct flow_end end = {
	    .first = word[0] | (u64)word[1] << 32,
	    .last = word[2] | (u64)word[3] << 32,
	    .port = to_guest ? e->dport : e->sport,
	    .version = e->version,
	};

	return end;
}

/* Whether they are one end. Without branches, which the verifier would follow for each of many ends. */
static __always_inline bool is_end(const volatile struct tcp_end *end, struct flow_end e)
{
	return !((end->version ^ e.version) | (end->port ^ e.port) | ((u32)e.first ^ end->addr[0]) |
		 (e.first >> 32 ^ end->addr[1]) | ((u32)e.last ^ end->addr[2]) |
		 (e.last >> 32 ^ end->addr[3]));
}

/* The smaller of two, in a form that the compiler does not transform, so that the verifier sees the bound. */
static __always_inline u64 at_most(u64 n, u64 most)
{
	barrier_var(n);
	if (n > most)
		n = most;
	barrier_var(n);
	return n;
}

/*
 * What is hashed of a packet: words of 32 bits in pairs, each word at its own offset. Every field in which
 * two packets may differ has an offset of its own, so different packets have different words.
 */
enum hash_offset {
	OFFSET_ENDS,	  /* IPv4: two addresses; IPv6: two of four words */
	OFFSET_WHAT = 8,  /* IP version, protocol and length; ports, or ICMP's id and sequence */
	OFFSET_ID = 10,	  /* IPv4: id, place of the fragment; IPv6: flow label; TCP: flags; ICMP: the rest */
	OFFSET_BODY = 12, /* UDP: payload; TCP: sequence, acknowledgement */
};

/* Secret words: two sets of them, one for each half of a hash. */
typedef const volatile u64 (*secret_words)[HASH_WORDS];

/* The two halves of a hash, before the last step. */
struct sums {
	u64 a, b;
	secret_words secret;
};

/*
 * Adds two words to a hash: the secret of its offset is added to each word, and the two are multiplied
 * ("pair-multiply-shift", Thorup, High Speed Hashing for Integers and Strings, 2015, section 3.5). For any
 * two different packets the upper 32 bits of one sum are equal for one in 2^32 choices of the secrets, and
 * those of both sums for one in 2^64: nobody can construct packets that collide more often.
 */
static __always_inline void add_pair(struct sums *s, int offset, u32 even, u32 odd)
{
	s->a += (s->secret[0][offset] + odd) * (s->secret[0][offset + 1] + even);
	s->b += (s->secret[1][offset] + odd) * (s->secret[1][offset + 1] + even);
	/* without this the compiler keeps more sums than there are registers */
	barrier_var(s->a);
	barrier_var(s->b);
}

static __always_inline u64 hash_of(const struct sums *s)
{
	return (s->a >> 32 << 32) | s->b >> 32;
}

static __always_inline void add_ends(struct sums *s, u8 version, const struct address *first,
				     const struct address *last)
{
	if (version == 4) {
		add_pair(s, OFFSET_ENDS, first->word[0], last->word[0]);
		return;
	}
	add_pair(s, OFFSET_ENDS, first->word[0], first->word[1]);
	add_pair(s, OFFSET_ENDS + 2, first->word[2], first->word[3]);
	add_pair(s, OFFSET_ENDS + 4, last->word[0], last->word[1]);
	add_pair(s, OFFSET_ENDS + 6, last->word[2], last->word[3]);
}

/* Whether the source sorts before the destination; this makes the key of a response that of its request. */
static __always_inline bool src_is_less(const struct endpoints *e)
{
	int i;

	for (i = 0; i < 4; i++) {
		if (e->src.word[i] != e->dst.word[i])
			return e->src.word[i] < e->dst.word[i];
	}
	return e->sport < e->dport;
}

/* Hash of what a request and its response have in common: both ends, what, id, and the body's part. */
static __always_inline u64 match_key(const struct endpoints *e, u32 what, u32 id, struct sums s)
{
	u32 ports;

	if (src_is_less(e)) {
		add_ends(&s, e->version, &e->src, &e->dst);
		ports = (u32)e->sport << 16 | e->dport;
	} else {
		add_ends(&s, e->version, &e->dst, &e->src);
		ports = (u32)e->dport << 16 | e->sport;
	}
	add_pair(&s, OFFSET_WHAT, what, ports);
	add_pair(&s, OFFSET_ID, id, 0);
	return hash_of(&s);
}

/* The key of all that two ends send each other. */
static __always_inline u64 ends_key(const struct endpoints *e, secret_words secret)
{
	struct sums sums = {.secret = secret};

	return match_key(e, (u32)e->proto << 16, 0, sums);
}

static __always_inline bool in_net(const volatile struct filter_net *n, const struct address *a)
{
	return (a->word[0] & n->mask[0]) == n->addr[0] && (a->word[1] & n->mask[1]) == n->addr[1] &&
	       (a->word[2] & n->mask[2]) == n->addr[2] && (a->word[3] & n->mask[3]) == n->addr[3];
}

/* The operator's filter. "src" is the requester, whatever the direction of the packet. */
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

/*
 * The headers of a packet. They are read at once, as if there were no VLAN tag, IPv4, and no options, which
 * is nearly always so: reading costs more by the call than by the byte. What is elsewhere is read again.
 */
union headers {
	struct {
		u8 pad[2]; /* so that the words behind it are aligned */
		struct {
			u8 dst[6], src[6];
			__be16 proto;
		} eth;
		struct {
			u8 ihl_version, tos;
			__be16 tot_len, id, frag;
			u8 ttl, proto;
			__be16 check;
			u32 src, dst;
		} ip;
		union {
			struct {
				__be16 sport, dport, len, check;
			} udp;
			struct {
				__be16 sport, dport;
				__be32 seq, ack;
				__be16 flags, window;
			} tcp; /* its beginning */
			struct {
				u8 type, code;
				__be16 check, id, seq;
			} icmp;
		} l4;
	};
	/* what takes their place when they have been used, for lack of room on the stack */
	struct {
		u8 pad6[2 + ETH_HLEN];
		struct {
			__be32 flow;
			__be16 len;
			u8 next, hops;
			struct address src, dst;
		} ip6;
	};
	u32 payload[PAYLOAD_HASHED / 4]; /* of UDP */
	/* for loads */
	u16 of_16[2];
	u32 of_32[13];
	u64 of_64[6];
};
#define HEADERS_READ (ETH_HLEN + 20 + 16)

/* Reads the Ethernet header of a packet at l2, whose linear part ends at end; counts one that has none. */
static __always_inline bool read_ethernet(const unsigned char *l2, const unsigned char *end, union headers *h)
{
	if (l2 + ETH_HLEN > end)
		goto unidentified;
	if (settings.loads) {
		h->of_16[1] = load_16(l2);
		h->of_32[1] = load_32(l2 + 2);
		h->of_64[1] = load_64(l2 + 6);
		return true;
	}
	if (!bpf_probe_read_kernel(&h->eth, ETH_HLEN, l2))
		return true;
unidentified:
	count(COUNT_UNIDENTIFIED);
	return false;
}

/* Reads the headers after that of Ethernet, as far as they are in the linear part; what is not is 0. */
static __always_inline bool read_others(const unsigned char *l2, const unsigned char *end, union headers *h)
{
	const unsigned char *at = l2 + ETH_HLEN;
	int i;

	if (settings.loads && l2 + HEADERS_READ <= end) {
#pragma unroll
		for (i = 2; i < 6; i++, at += 8)
			h->of_64[i] = load_64(at);
		h->of_32[12] = load_32(at);
		return true;
	}
	__builtin_memset(&h->ip, 0, HEADERS_READ - ETH_HLEN);
	return !bpf_probe_read_kernel(&h->ip, at_most(end - at, HEADERS_READ - ETH_HLEN), at);
}

/* Reads the headers; counts a packet that has not even that of Ethernet. */
static __always_inline bool read_headers(const unsigned char *l2, const unsigned char *end, union headers *h)
{
	if (settings.loads)
		return read_ethernet(l2, end, h) && read_others(l2, end, h);
	/* with one call */
	__builtin_memset(&h->eth, 0, HEADERS_READ);
	if (l2 + ETH_HLEN <= end && !bpf_probe_read_kernel(&h->eth, at_most(end - l2, HEADERS_READ), l2))
		return true;
	count(COUNT_UNIDENTIFIED);
	return false;
}

/*
 * Adds the first n bytes of a payload, which begins at `at`, to a hash; at most PAYLOAD_HASHED, and what is
 * missing of these is 0. `room` is used if they are fewer, or cannot be loaded: loads of a part would have
 * the verifier follow the program for each length.
 */
static __always_inline bool add_payload(struct sums *s, const unsigned char *at, u64 n, u32 *room)
{
	int i;

	if (settings.loads && n == PAYLOAD_HASHED) {
#pragma unroll
		for (i = 0; i < PAYLOAD_HASHED; i += 8) {
			u64 pair = load_64(at + i);

			add_pair(s, OFFSET_BODY + i / 4, pair, pair >> 32);
		}
		return true;
	}
	__builtin_memset(room, 0, PAYLOAD_HASHED);
	/* bounded here: Linux 6.1 forgets a bound when the number is put on the stack */
	n = at_most(n, PAYLOAD_HASHED);
	if (n && bpf_probe_read_kernel(room, n, at))
		return false;
#pragma unroll
	for (i = 0; i < PAYLOAD_HASHED; i += 8)
		add_pair(s, OFFSET_BODY + i / 4, room[i / 4], room[i / 4 + 1]);
	return true;
}

/*
 * Identifies a packet that starts at l2, whose headers are h as read_headers() has left them, and whose
 * linear part ends at end, by a hash with this secret.
 *
 * The fingerprint covers what neither forwarding nor checksum offload changes: addresses, protocol,
 * ports, IP id or flow label, length, and for UDP the first 64 bytes of payload, for TCP sequence,
 * acknowledgement and flags, for ICMP the message's header. The UDP checksum is left out: a guest that
 * offloads it sends the sum of the pseudo-header, which is equal for all its packets of one length, and the
 * host may complete it on the way. The payload takes its place, because UDP senders commonly leave the IP id
 * 0 (ip_select_ident with DF set). The traffic class (DSCP, ECN) is left out too: queues and policers mark
 * packets on the way.
 *
 * A large packet of TCP (GSO, GRO) has the fingerprint of its first segment, so that the packet is tracked
 * by means of that segment where it is split or merged. The two have all in
 * common but length, checksum, FIN and PSH (tcp_gso_segment, tcp_gro_receive), so length, FIN and PSH are
 * left out of segments of more than TCP_LENGTH_HASHED bytes. Those have sequence numbers of their own. Only
 * if one is sent again with another length, but the same acknowledgement and IP id or flow label, while the
 * first is still on its way, the two are alike, as two of the same length are anyway. Of shorter segments all
 * is hashed: an ACK, data and a FIN with one sequence number follow each other closely.
 *
 * keyed: the packet's part in requests is asked for, too; at most points of the path nobody does.
 *
 * Returns false for packets that do not pass the filter, that are teiji's own, or that cannot be identified
 * (these are counted).
 */
static __always_inline bool identify(union headers *h, const unsigned char *l2, const unsigned char *end,
				     bool to_guest, bool keyed, secret_words secret, struct packet *p)
{
	const unsigned char *at = l2 + ETH_HLEN;
	struct endpoints e = {};
	struct sums sums = {.secret = secret};
	u32 id, ports = 0, l4 = 0;
	u16 ether, len, l4_len;
	int i;

	if (!(settings.directions & (to_guest ? DIR_IN : DIR_OUT)))
		return false;

	ether = bpf_ntohs(h->eth.proto);
	for (i = 0; i < 2 && (ether == ETH_P_8021Q || ether == ETH_P_8021AD); i++) {
		__be16 inner;

		if (at + 4 > end || bpf_probe_read_kernel(&inner, 2, at + 2))
			goto unidentified;
		ether = bpf_ntohs(inner);
		at += 4;
	}

	if (ether == ETH_P_IP) {
		u32 ihl;

		if (at + sizeof(h->ip) > end ||
		    (at != l2 + ETH_HLEN && bpf_probe_read_kernel(&h->ip, sizeof(h->ip), at)))
			goto unidentified;
		ihl = (h->ip.ihl_version & 15) * 4;
		if (h->ip.ihl_version >> 4 != 4 || ihl < sizeof(h->ip))
			goto unidentified;
		e.version = 4;
		e.proto = h->ip.proto;
		e.src.word[0] = h->ip.src;
		e.dst.word[0] = h->ip.dst;
		len = bpf_ntohs(h->ip.tot_len);
		l4_len = len > ihl ? len - ihl : 0;
		id = (u32)h->ip.id << 16 | (h->ip.frag & bpf_htons(0x1fff));
		at += ihl;
		if (h->ip.frag & bpf_htons(0x1fff)) { /* a later fragment has no ports */
			if (settings.ports || !passes(&e, to_guest))
				return false;
			goto identified;
		}
	} else if (ether == ETH_P_IPV6) {
		if (at + sizeof(h->ip6) > end || bpf_probe_read_kernel(&h->ip6, sizeof(h->ip6), at))
			goto unidentified;
		e.version = 6;
		e.proto = h->ip6.next;
		e.src = h->ip6.src;
		e.dst = h->ip6.dst;
		len = bpf_ntohs(h->ip6.len);
		l4_len = len;
		id = h->ip6.flow & bpf_htonl(0x000fffff); /* the flow label, not the traffic class */
		at += sizeof(h->ip6);
	} else {
		return false; /* ARP and others are part of no request */
	}

	if (at != l2 + ETH_HLEN + sizeof(h->ip) && at < end &&
	    bpf_probe_read_kernel(&h->l4, at_most(end - at, sizeof(h->l4)), at))
		goto unidentified;
	/* see above; that of a packet of more than 64 KiB is 0 already (BIG TCP) */
	if (e.proto == PROTO_TCP && l4_len > TCP_LENGTH_HASHED)
		len = 0;

	if (e.proto == PROTO_UDP) {
		__be16 udp_len = h->l4.udp.len;
		u64 n;

		if (at + sizeof(h->l4.udp) > end)
			goto unidentified;
		e.sport = bpf_ntohs(h->l4.udp.sport);
		e.dport = bpf_ntohs(h->l4.udp.dport);
		if (!passes(&e, to_guest))
			return false;
		ports = (u32)e.sport << 16 | e.dport;
		at += sizeof(h->l4.udp);
		p->headers = at - l2;
		/* the frame may be padded, and the datagram may be longer than the linear part */
		n = bpf_ntohs(udp_len);
		n = at_most(n > sizeof(h->l4.udp) ? n - sizeof(h->l4.udp) : 0, at < end ? end - at : 0);
		p->payload = at;
		p->payload_len = n;
		if (!add_payload(&sums, at, at_most(n, PAYLOAD_HASHED), h->payload))
			goto unidentified;
		if (keyed && settings.matching == MATCH_ECHO) {
			p->key = match_key(&e, (u32)PROTO_UDP << 16 | udp_len, 0, sums);
			p->role = ROLE_EITHER;
		} else if (keyed && (settings.matching == MATCH_DNS || settings.matching == MATCH_KEY)) {
			p->key = ends_key(&e, secret);
		}
	} else if (e.proto == PROTO_TCP) {
		if (at + sizeof(h->l4.tcp) > end)
			goto unidentified;
		e.sport = bpf_ntohs(h->l4.tcp.sport);
		e.dport = bpf_ntohs(h->l4.tcp.dport);
		if (!passes(&e, to_guest) || reports(&e, to_guest))
			return false;
		ports = (u32)e.sport << 16 | e.dport;
		l4 = h->l4.tcp.flags;
		p->headers = at - l2 + (bpf_ntohs(h->l4.tcp.flags) >> 12) * 4;
		if (!len)
			l4 &= ~bpf_htons(TCP_FIN_PSH);
		if (keyed && settings.matching == MATCH_TCP) {
			p->key = ends_key(&e, secret);
			p->role = ROLE_SEGMENT;
			p->payload = at;
			p->payload_len = l4_len;
		}
		add_pair(&sums, OFFSET_BODY, h->l4.tcp.seq, h->l4.tcp.ack);
	} else if (e.proto == PROTO_ICMP || e.proto == PROTO_ICMPV6) {
		u8 type = h->l4.icmp.type;
		bool request, reply;

		if (!passes(&e, to_guest))
			return false;
		if (at + sizeof(h->l4.icmp) > end)
			goto unidentified;
		l4 = (u32)type << 24 | (u32)h->l4.icmp.code << 16 | h->l4.icmp.check;
		ports = (u32)h->l4.icmp.id << 16 | h->l4.icmp.seq;
		request = e.proto == PROTO_ICMP ? type == 8 : type == 128;
		reply = e.proto == PROTO_ICMP ? type == 0 : type == 129;
		if (keyed && settings.matching == MATCH_ECHO && (request || reply)) {
			p->key = match_key(&e, (u32)PROTO_ICMP << 16, ports, sums);
			p->role = request ? ROLE_REQUEST : ROLE_FINAL;
		}
	} else {
		if (settings.ports || !passes(&e, to_guest))
			return false;
	}
identified:
	add_ends(&sums, e.version, &e.src, &e.dst);
	add_pair(&sums, OFFSET_WHAT, (u32)e.version << 28 | (u32)e.proto << 16 | len, ports);
	add_pair(&sums, OFFSET_ID, id, l4);
	p->fingerprint = hash_of(&sums);
	if (!p->fingerprint)
		p->fingerprint = 1;
	p->proto = e.proto;
	p->to_guest = to_guest;
	return true;
unidentified:
	count(COUNT_UNIDENTIFIED);
	return false;
}

#endif
