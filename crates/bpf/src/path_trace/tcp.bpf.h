/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Segments of TCP: their place in the connection. Which of them begin a request or its answer, the analysis
 * finds out; no payload is read.
 *
 *   source  destination  sequence  acknowledgement  length of the header, flags  ...
 *   └ whose port the filter has ┘
 *
 * The payload's length follows from the IP header, as segments of GSO and GRO have it, too: their IP length
 * is that of the whole.
 */
#ifndef TEIJI_TCP_BPF_H
#define TEIJI_TCP_BPF_H

#define TCP_FLAGS (SEGMENT_FIN | SEGMENT_SYN | SEGMENT_RST | SEGMENT_ACK)

/*
 * Which end has a port of the filter: its conditions are on the responder's port, if they do not say
 * otherwise. Of a connection that was open before the trace nothing else tells who asks and who answers.
 */
static __always_inline u8 port_owner(u16 guest, u16 other)
{
	u8 owner = 0;
	int i;

	for (i = 0; i < MAX_PORTS; i++) {
		const volatile struct filter_port *p = &settings.port[i];

		if (i >= settings.ports)
			break;
		if (p->end != END_SRC && p->port == guest)
			owner |= SEGMENT_PORT_OF_GUEST;
		if (p->end == END_ANY && p->port == other)
			owner |= SEGMENT_PORT_OF_OTHER;
	}
	return owner;
}

/* Describes a segment, whose header identify() has found. Returns its part in requests. */
static __always_inline u8 read_segment(const struct packet *p, struct segment *s)
{
	struct {
		__be16 sport, dport;
		__be32 seq, ack;
		__be16 flags;
	} tcp;
	u16 flags, header;

	if (p->role != ROLE_SEGMENT || bpf_probe_read_kernel(&tcp, 14, p->payload))
		return ROLE_NONE;
	flags = bpf_ntohs(tcp.flags);
	header = (flags >> 12) * 4;
	s->seq = bpf_ntohl(tcp.seq);
	s->ack = bpf_ntohl(tcp.ack);
	s->payload = p->payload_len > header ? p->payload_len - header : 0;
	s->flags = flags & TCP_FLAGS;
	if (p->to_guest)
		s->flags |= port_owner(bpf_ntohs(tcp.dport), bpf_ntohs(tcp.sport));
	else
		s->flags |= port_owner(bpf_ntohs(tcp.sport), bpf_ntohs(tcp.dport));
	s->pad = 0;
	return ROLE_SEGMENT;
}

#endif
