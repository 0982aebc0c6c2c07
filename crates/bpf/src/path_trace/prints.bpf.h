/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How a guest that reports events itself identifies the packets on its taps: by the same hash with a secret
 * of its own, which says nothing about the fingerprints of others. Programs of their own, which are loaded
 * only if guests are asked: the others have no room for a second hash on their stack, and cost nothing more.
 */
#ifndef TEIJI_PRINTS_BPF_H
#define TEIJI_PRINTS_BPF_H

static __always_inline u64 hash_with(const unsigned char *l2, const unsigned char *end, bool to_guest,
				     secret_words secret)
{
	struct packet p = {};
	union headers h;

	if (!read_headers(l2, end, &h) || !identify(&h, l2, end, to_guest, false, secret, &p))
		return 0;
	return p.fingerprint;
}

static __always_inline int emit_print(struct sk_buff *skb, const unsigned char *l2, bool to_guest,
				      u32 ifindex)
{
	const unsigned char *end = skb->data + (skb->len - skb->data_len);
	struct guest_secret *guest;
	u64 fingerprint, print;
	struct rec_print *r;

	/* of macvtaps, guests' frames are not received, but sent, by the device */
	if (!hinted(ifindex, HINT_GUEST) || !is_tap_here(skb->dev) || is_macvtap(ifindex))
		return 0;
	guest = bpf_map_lookup_elem(&guests, &ifindex);
	if (!guest)
		return 0;
	fingerprint = hash_with(l2, end, to_guest, settings.secret);
	if (!fingerprint)
		return 0;
	print = hash_with(l2, end, to_guest, guest->words);
	r = reserve(sizeof(*r));
	if (!r)
		return 0;
	fill_head(&r->head, bpf_ktime_get_ns(), REC_PRINT, 0, ifindex);
	r->fingerprint = fingerprint;
	r->print = print;
	submit(r);
	return 0;
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(on_print_sent, struct sk_buff *skb)
{
	return emit_print(skb, skb->head + skb->mac_header, false, skb->dev->ifindex);
}

SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(on_print_put, struct sk_buff *skb, struct net_device *dev)
{
	return emit_print(skb, skb->data, true, dev->ifindex);
}

#endif
