/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Requests of DNS over UDP (RFC 1035): which message is a query, which a response, and what they have in
 * common.
 *
 *   id  flags  1  -  -  -   www.example.com   type  class   ...
 *       │      │            └ hashed in lower case ┘
 *       │      └ number of questions
 *       └ QR: response; opcode
 *
 * A response repeats the id and the question of its query. Both are hashed here, byte for byte but for the
 * case of the name (servers keep it or do not, RFC 4343), with secrets of their own for each place: the
 * message does not leave the kernel. A message takes part in no request if it is not of exactly that form:
 * another opcode, another number of questions, a name that is compressed, too long, or not complete in the
 * packet's linear part.
 */
#ifndef TEIJI_DNS_BPF_H
#define TEIJI_DNS_BPF_H

#define DNS_NAME_MAX 255   /* bytes, with the length of each label and the last, empty label */
#define DNS_LABELS_MAX 128 /* of that many bytes, the empty one included */
#define DNS_LABEL_MAX 63
#define DNS_RESPONSE 0x8000 /* of the flags */
#define DNS_OPCODE 0x7800

struct dns_header {
	__be16 id, flags, questions, answers, authorities, additional;
};

/* Each of eight bytes in lower case, if it is a letter of ASCII. */
static __always_inline u64 lower_case(u64 bytes)
{
	const u64 each = 0x0101010101010101;
	u64 low = bytes & (0x7f * each);
	u64 from_a = low + (0x80 - 'A') * each;
	u64 after_z = low + (0x80 - 'Z' - 1) * each;
	u64 upper = (from_a ^ after_z) & ~bytes & (0x80 * each);

	return bytes | upper >> 2;
}

/* The bytes of a name of which there are at most `room`; 0 if it is malformed. */
static __always_inline u32 dns_name_length(const unsigned char *name, u32 room)
{
	u32 length = 0;
	int i;

#pragma clang loop unroll(disable)
	for (i = 0; i < DNS_LABELS_MAX; i++) {
		u8 label;

		if (length >= DNS_NAME_MAX || length >= room ||
		    bpf_probe_read_kernel(&label, 1, name + length))
			return 0;
		if (!label)
			return length + 1;
		if (label > DNS_LABEL_MAX)
			return 0;
		length += 1 + label;
	}
	return 0;
}

static __always_inline void add_question(u64 *a, u64 *b, u32 word, u32 even, u32 odd)
{
	/* as add_pair() */
	*a += (settings.question[word] + odd) * (settings.question[word + 1] + even);
	*b += (settings.question[QUESTION_WORDS + word] + odd) *
	      (settings.question[QUESTION_WORDS + word + 1] + even);
	barrier_var(*a);
	barrier_var(*b);
}

/* Gives a datagram, whose key is that of its ends, its part in a request of DNS. */
static __always_inline void match_dns(struct packet *p)
{
	const unsigned char *name = p->payload + sizeof(struct dns_header);
	u32 room = p->payload_len, length, tail;
	struct dns_header h;
	u64 a = 0, b = 0;
	int i;

	if (room < sizeof(h) || bpf_probe_read_kernel(&h, sizeof(h), p->payload))
		return;
	if (h.questions != bpf_htons(1) || h.flags & bpf_htons(DNS_OPCODE))
		return;
	room -= sizeof(h);
	length = dns_name_length(name, room);
	if (!length || room - length < sizeof(tail) ||
	    bpf_probe_read_kernel(&tail, sizeof(tail), name + length))
		return;
#pragma clang loop unroll(disable)
	for (i = 0; i < QUESTION_WORDS / 2 - 1; i++) {
		u64 bytes = 0;

		if (8 * i >= length)
			break;
		if (bpf_probe_read_kernel(&bytes, at_most(length - 8 * i, 8), name + 8 * i))
			return;
		bytes = lower_case(bytes);
		add_question(&a, &b, 2 * i, bytes, bytes >> 32);
	}
	/* the type's and the class's bytes are no letters */
	add_question(&a, &b, QUESTION_WORDS - 2, tail, length << 16 | h.id);
	/* two keys with secrets of their own: their sum collides no more often than either */
	p->key += (a >> 32 << 32) | b >> 32;
	p->role = h.flags & bpf_htons(DNS_RESPONSE) ? ROLE_FINAL : ROLE_REQUEST;
}

#endif
