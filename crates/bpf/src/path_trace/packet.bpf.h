/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which packets of a host belong to its traced guests. What identifies them is in packet_hash.bpf.h.
 */
#ifndef TEIJI_PACKET_BPF_H
#define TEIJI_PACKET_BPF_H

#include "../common/packet_hash.bpf.h"

/* An array and not a map: the programs have no room for its key on their stacks. */
static __always_inline bool reports(const struct endpoints *e, bool to_guest)
{
	int i;

#pragma unroll 1
	for (i = 0; i < MAX_REPORTING; i++) {
		if (i >= followed.reporting)
			return false;
		if (is_end(&followed.ends[i], e, to_guest))
			return true;
	}
	return false;
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
 * Identifies a packet that starts at l2 and whose linear part ends at end: see identify(). known: the point
 * is at a tap, so to_guest is the direction of the packet. Otherwise only packets of the direction to_guest
 * are accepted, which the MAC addresses decide if they can.
 *
 * Returns false for packets that do not belong to traced guests, that do not pass the filter, or that cannot
 * be identified (these are counted).
 */
static __always_inline bool parse(const unsigned char *l2, const unsigned char *end, bool known,
				  bool to_guest, struct packet *p)
{
	struct ethernet eth;

	if (!read_ethernet(l2, end, &eth))
		return false;
	if (!known) {
		if (followed.by_mac) {
			/* towards a guest if it is the destination, from one if only the source is */
			if (to_guest ? !is_guest_mac(eth.dst)
				     : !is_guest_mac(eth.src) || is_guest_mac(eth.dst))
				return false;
			if (to_guest)
				p->received = bpf_ktime_get_ns();
		}
	}
	return identify(&eth, l2, end, to_guest, settings.secret, p);
}

#endif
