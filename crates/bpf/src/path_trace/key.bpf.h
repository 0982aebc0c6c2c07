/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Requests of any protocol over UDP whose responses repeat some bytes at a fixed place, such as an
 * identifier. The bytes are hashed here with secrets of their own, and do not leave the kernel. A datagram
 * that ends before them, or has them outside of the packet's linear part, takes part in no request.
 */
#ifndef TEIJI_KEY_BPF_H
#define TEIJI_KEY_BPF_H

#define KEY_WORDS (KEY_MAX / 4)

/* Gives a datagram, whose key is that of its ends, its part in a request. */
static __always_inline void match_bytes(struct packet *p)
{
	u32 offset = settings.key_offset, length = settings.key_len, word[KEY_WORDS] = {};
	u64 a = 0, b = 0;
	int i;

	if (p->payload_len < offset + length ||
	    bpf_probe_read_kernel(word, at_most(length, KEY_MAX), p->payload + offset))
		return;
#pragma unroll
	for (i = 0; i < KEY_WORDS; i += 2)
		add_question(&a, &b, i, word[i], word[i + 1]);
	/* as in match_dns() */
	p->key += (a >> 32 << 32) | b >> 32;
	p->role = ROLE_EITHER;
}

/* What the payload of a datagram says about its request, if it is to be read here. */
static __always_inline void match_payload(struct packet *p)
{
	if (p->proto != PROTO_UDP)
		return;
	if (settings.matching == MATCH_DNS)
		match_dns(p);
	else if (settings.matching == MATCH_KEY)
		match_bytes(p);
}

#endif
