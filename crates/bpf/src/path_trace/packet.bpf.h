/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which packets of a host belong to its traced guests. What identifies them is in packet_hash.bpf.h.
 */
#ifndef TEIJI_PACKET_BPF_H
#define TEIJI_PACKET_BPF_H

#include "../common/packet_hash.bpf.h"

/*
 * Whether an end (struct flow_end) is one of `followed.ends`: an array and not a map, as the programs have no
 * room for its key on their stacks. Not inlined: so the verifier looks at the loop once in each program, and
 * not in each state in which a segment comes to it. What the verifier looks at takes most of the time in
 * which a trace starts.
 */
__noinline int is_reporting(u64 first, u64 last, u32 port, u32 version)
{
	struct flow_end e = {first, last, port, version};
	int i;

#pragma unroll 1
	for (i = 0; i < MAX_REPORTING; i++) {
		if (i >= followed.reporting)
			return false;
		if (is_end(&followed.ends[i], e))
			return true;
	}
	return false;
}

static __always_inline bool reports(const struct endpoints *e, bool to_guest)
{
	struct flow_end end;

	if (!followed.reporting)
		return false;
	end = end_of_guest(e, to_guest);
	return is_reporting(end.first, end.last, end.port, end.version);
}

static __always_inline bool is_guest_mac(const u8 *addr)
{
	struct mac m = {};

	if (!hinted((u32)addr[4] << 8 | addr[5], HINT_MAC))
		return false;
	__builtin_memcpy(m.addr, addr, 6);
	return bpf_map_lookup_elem(&macs, &m);
}

/* What a probe knows of a packet, and asks for. */
enum parse_flags {
	AT_TAP = 1,	    /* so the direction is known; elsewhere the MAC addresses decide it if they can */
	TO_GUEST = 2,	    /* the direction; elsewhere than at a tap packets of the other one are refused */
	KEYED = 4,	    /* see identify() */
	HAS_MAC_HEADER = 8, /* parse_skb() alone: data begins after it */
};

/*
 * Identifies a packet that starts at l2 and whose linear part ends at end: see identify().
 *
 * Returns false for packets that do not belong to traced guests, that do not pass the filter, or that cannot
 * be identified (these are counted).
 */
static __always_inline bool parse(const unsigned char *l2, const unsigned char *end, enum parse_flags flags,
				  struct packet *p)
{
	const bool to_guest = flags & TO_GUEST;
	union headers h;

	if (flags & AT_TAP || !followed.by_mac) {
		if (!read_headers(l2, end, &h))
			return false;
	} else {
		/* most packets of a host are no traced guest's: of those only the addresses are read */
		if (!read_ethernet(l2, end, &h))
			return false;
		/* towards a guest if it is the destination, from one if only the source is */
		if (to_guest ? !is_guest_mac(h.eth.dst) : !is_guest_mac(h.eth.src) || is_guest_mac(h.eth.dst))
			return false;
		if (to_guest)
			p->received = bpf_ktime_get_ns();
		if (!read_others(l2, end, &h))
			return false;
	}
	return identify(&h, l2, end, to_guest, flags & KEYED, settings.secret, p);
}

/*
 * Counts the segments that a packet stands for: more than 1 if it is left to others on its way to split it
 * (GSO, TSO, UFO), or if it was merged (GRO). identify() has found its headers; shared is where the skb has
 * its struct skb_shared_info. The kernel's own count (gso_segs) is 0 until somebody checks what a guest has
 * sent (virtio_net_hdr_to_skb), so the size of a segment is taken, which a guest may choose as it likes.
 */
static __always_inline void count_segments(struct packet *p, const unsigned char *shared)
{
	u32 size = READ((struct skb_shared_info *)shared, gso_size), payload, n;

	p->segments = 1;
	if (!size || !p->headers || p->len <= p->headers)
		return;
	payload = p->len - p->headers;
	n = (payload + size - 1) / size;
	p->segments = n > 0xffff ? 0xffff : n;
}

#endif
