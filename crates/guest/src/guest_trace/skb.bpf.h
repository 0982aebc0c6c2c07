/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The print of an skb, wherever its headers and the first bytes of its payload are. A driver commonly leaves
 * all but the first bytes of a packet in pages (virtio_net with mergeable buffers: all but 14 bytes, of
 * packets longer than 128), which the stack copies into the linear part as it needs them. The host has the
 * same packet in one piece. So what is hashed is copied here first if it is not in one piece.
 */
#ifndef TEIJI_SKB_BPF_H
#define TEIJI_SKB_BPF_H

/* What identify() reads at most: Ethernet, two VLAN tags, IP with options, UDP, and the payload. */
#define HEAD_BYTES (ETH_HLEN + 8 + 60 + 8 + PAYLOAD_HASHED)
#define HEAD_FRAGS 4 /* parts that are looked at, besides the linear one */

struct head {
	u64 address; /* of bytes, as a number: the verifier does not follow what comes out of memory */
	/* the linear part, all others, and one more: the verifier of Linux 6.1 forgets bounds that are
	 * compared with */
	u8 bytes[(HEAD_FRAGS + 2) * HEAD_BYTES];
};

/* For the probes that copy, which run with softirqs disabled: one at a time on a CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct head);
} heads SEC(".maps");

/* Whether a device is not the loopback device, whose packets the host does not see. */
static __always_inline bool of_a_wire(struct sk_buff *skb)
{
	return !(skb->dev->flags & IFF_LOOPBACK);
}

/*
 * Copies the head of a packet from l2 on, whose linear part ends at end. Returns the address of the copy and
 * its length, or 0 if it cannot be read.
 */
static __always_inline const unsigned char *copy_head(struct sk_buff *skb, const unsigned char *l2,
						      const unsigned char *end, u64 *len)
{
	const unsigned char *info = skb->head + skb->end;
	u64 n = at_most(end - l2, HEAD_BYTES), offset_base = 0, pages = 0;
	u32 zero = 0, i, parts;
	struct head *h = bpf_map_lookup_elem(&heads, &zero);

	if (!h || !symbols.page_offset_base || !symbols.vmemmap_base)
		return NULL;
	if (bpf_probe_read_kernel(&offset_base, 8, (void *)symbols.page_offset_base) ||
	    bpf_probe_read_kernel(&pages, 8, (void *)symbols.vmemmap_base))
		return NULL;
	if (bpf_probe_read_kernel(h->bytes, n, l2))
		return NULL;
	parts = BPF_CORE_READ((struct skb_shared_info *)info, nr_frags);
#pragma unroll
	for (i = 0; i < HEAD_FRAGS; i++) {
		struct frag f;
		u64 m, virt;

		if (i >= parts || n >= HEAD_BYTES)
			break;
		if (bpf_probe_read_kernel(&f, sizeof(f),
					  info + bpf_core_field_offset(struct skb_shared_info, frags) +
					      i * sizeof(f)) ||
		    f.page & 1)
			return NULL;
		virt = offset_base + ((f.page - pages) / bpf_core_type_size(struct page) << PAGE_SHIFT) +
		       f.offset;
		m = at_most(f.len, HEAD_BYTES);
		if (bpf_probe_read_kernel(h->bytes + n, m, (void *)virt))
			return NULL;
		n += m;
	}
	h->address = (u64)h->bytes;
	barrier();
	*len = at_most(n, HEAD_BYTES);
	return (const unsigned char *)*(volatile u64 *)&h->address;
}

/* received: data is behind the Ethernet header; else at it. */
static __always_inline bool identify_skb(struct sk_buff *skb, bool received, bool to_guest, struct packet *p)
{
	const unsigned char *data = skb->data, *l2 = data, *end;
	union headers h;

	if (received) {
		if (skb->mac_header == 0xffff) /* not set */
			return false;
		l2 = skb->head + skb->mac_header;
	}
	end = data + (skb->len - skb->data_len);
	if (skb->data_len && end - l2 < HEAD_BYTES) {
		u64 len = 0;

		l2 = copy_head(skb, l2, end, &len);
		if (!l2) {
			count(COUNT_UNIDENTIFIED);
			return false;
		}
		end = l2 + len;
	}
	return read_headers(l2, end, &h) && identify(&h, l2, end, to_guest, true, settings.secret, p);
}

#endif
