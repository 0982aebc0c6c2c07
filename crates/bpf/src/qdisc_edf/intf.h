/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The interface between qdisc_edf and its Rust half. The Rust side of every type here is generated from
 * the object's BTF at build time (build.rs), so no type is written twice.
 *
 * Times are nanoseconds of CLOCK_MONOTONIC, sizes bytes on the wire (frame, and per frame the link's
 * overhead), rates bytes per second.
 */
#ifndef TEIJI_QDISC_EDF_INTF_H
#define TEIJI_QDISC_EDF_INTF_H

#define MAX_LINKS 64
#define SETTINGS_PER_LINK 4 /* those that count, and those of the three changes before */
#define MAX_CHANNELS 4096   /* of all links */
#define MAX_MATCHES 16384   /* a channel has one for each IP version, twice while its link is changed */
#define LABEL 64	    /* bytes of a channel's name, and a zero */
#define MAX_SHAPES 16	    /* of a link: distinct sets of fields that its channels look at */
#define FLOWS 1024	    /* queues of best-effort flows of a link; a flow is found by its hash */
#define DELAY_BUCKETS 40    /* bucket i: 2^i up to 2^(i+1) ns; the last: all above (9 minutes) */

/* Several network namespaces may use the same ifindex. */
struct link_key {
	__u64 netns; /* SO_NETNS_COOKIE */
	__u32 ifindex;
	__u32 pad;
};

/* Key of a packet's channel; addresses and ports in network order, IPv4 in the first word. */
struct match_key {
	__u32 link;  /* link_settings.id */
	__u32 shape; /* shape.tag */
	__u8 version;
	__u8 proto;
	__u8 pad[2];
	__be16 sport;
	__be16 dport;
	__be32 src[4];
	__be32 dst[4];
};

/* Fields that some channels compare: a packet's fields under this mask, with the tag, are looked up. */
struct shape {
	__u32 tag;    /* not 0; one for each distinct mask */
	__u8 version; /* 4 or 6 */
	__u8 proto;   /* mask */
	__u8 ports;   /* does not apply to packets without ports */
	__u8 pad;
	__be16 sport;
	__be16 dport;
	__be32 src[4];
	__be32 dst[4];
};

struct link_settings {
	__u64 rate;	   /* 0: not limited */
	__u64 slack;	   /* best effort goes first while the earliest deadline is further away */
	__u64 credit;	   /* idle or late time of the link that is made up for, ns */
	__u64 rt_rate;	   /* of all channels together; 0: not bounded */
	__u64 rt_burst;	   /* bytes */
	__u32 overhead;	   /* bytes per frame beside those the kernel counts: FCS, preamble, gap */
	__u32 min_frame;   /* the kernel's count of the shortest frame */
	__u32 limit_bytes; /* of the best-effort queue, and of the real-time queue */
	__u32 limit_packets;
	__u32 id; /* of these settings in match_key; other settings, another id */
	__u32 shapes;
	__u32 unpaced; /* what is queued leaves at once: the link is about to get another qdisc */
	__u32 pad;
	struct shape shape[MAX_SHAPES]; /* the first that matches decides */
};

/* A channel's name. The programs do not read it. */
struct label {
	__u8 name[LABEL];
};

/* Shared by the processes that write settings. The programs do not read it. */
struct registry {
	__u64 programs;	  /* fingerprint of those that were loaded; first in every release */
	__u32 generation; /* link_settings.id that was used last */
	__u32 channel;	  /* index of the channel that was added last */
};

struct channel_settings {
	__u64 deadline;
	__u64 rate;
	__u64 burst; /* bytes */
	__u32 id;    /* index of its channel_state */
	__u32 pad;
};

struct channel_stats {
	__u64 packets; /* sent by their deadline's order */
	__u64 bytes;
	__u64 delay_max; /* delays: from arrival to the last bit */
	__u64 delay_sum;
	__u64 misses; /* whose last bit, at the link's rate, was sent after the deadline */
	__u64 excess; /* packets that exceeded the rate, sent as best effort */
	__u64 excess_bytes;
	__u64 drops;
	__u64 delay[DELAY_BUCKETS];
};

struct channel_state {
	__u64 due; /* when the token bucket will be full */
	struct channel_stats stats;
};

struct link_stats {
	__u64 rt_packets;
	__u64 rt_bytes;
	__u64 be_packets;
	__u64 be_bytes;
	__u64 be_drops;
	__u64 rt_drops;
	__u64 capped;		/* packets of channels over the bound of all, sent as best effort */
	__u64 fallback_packets; /* sent as FIFO for want of a heartbeat */
	__u64 fallbacks;	/* times that it fell back */
	__u64 largest; /* largest best-effort packet, bytes: it is what a deadline may have to wait for */
	__u32 rt_queued;
	__u32 be_queued;
};

#endif
