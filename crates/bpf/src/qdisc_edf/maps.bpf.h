/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What qdisc_edf keeps.
 *
 *   written by processes         written by the programs, under the qdisc's own lock
 *   slots:    link            -> a number, which the qdisc of the link keeps (Qdisc.limit)
 *   current:  slot            -> which of the slot's settings count
 *   settings: slot, which        states: slot     queues, pacing, flows, statistics
 *   matches:  fields          -> channels: index  token bucket, statistics
 *   heartbeat                    wire_free: slot   when the wire will have sent what it was given
 *                                users
 *   labels, registry             (not read by the programs)
 *
 * What processes write has BPF_F_RDONLY_PROG (but for the heartbeat): the verifier refuses programs that
 * write it. maps.rs has the writers of each map.
 *
 * A link is looked up once, when it gets the qdisc: a hash look-up costs more than everything else that a
 * packet needs of these maps, and the kernel inlines look-ups in arrays.
 *
 * A link's settings are never written while a program may read them. New settings are written beside those
 * in use, in the place of those of the fourth change before this one, and then `current` names them. It is
 * below 256, so a change of it is a change of one byte. The programs see the old or the new settings, never
 * a mixture; the state, and with it every queued packet, stays where it is. The matches of the new settings
 * are written beside the old ones, under an id that the new settings name: one write changes a link's
 * settings and all of its channels.
 *
 * A slot is given to a link while no qdisc has it (link_state.owner): its state is then zeroed.
 */
#ifndef TEIJI_QDISC_EDF_MAPS_H
#define TEIJI_QDISC_EDF_MAPS_H

#include "../common/heartbeat.bpf.h"

#define NO_CHANNEL 0xffffffffU

/*
 * What is known of a queued packet. All members have 64 bits: the struct is copied as a whole, and the
 * compiler would merge narrower members into accesses that the verifier refuses.
 */
struct queued {
	u64 key; /* real time: its deadline; best effort: where it starts in its flow's service */
	u64 arrival;
	u64 tx;	     /* time that it takes on the link, ns */
	u64 len;     /* on the wire */
	u64 channel; /* best effort: NO_CHANNEL */
	u64 flow;
	u64 kernel_len; /* as the kernel counts it */
};

/* A queued packet; in exactly one tree. */
struct packet {
	struct queued is;
	struct sk_buff __kptr *skb;
	struct bpf_rb_node node;
};

struct flow {
	u64 finish; /* where its last packet ends in its service */
	u32 bytes;  /* queued */
	u32 pad;
};

struct link_state {
	struct bpf_spin_lock lock; /* the verifier asks for it; the qdisc's own lock is what excludes */
	struct bpf_rb_root rt __contains(packet, node);
	struct bpf_rb_root be __contains(packet, node);
	struct sk_buff __kptr *only; /* the one packet that is queued, while it is in no tree */
	struct queued only_is;
	u64 rate; /* of the settings, as of the last arrival; so are the next two */
	u64 slack;
	u64 credit;
	u64 owner;     /* the qdisc that uses this; 0: none */
	u64 next_free; /* when the link will have sent what it was given */
	u64 service;   /* the start of the best-effort packet that was sent last */
	u64 finish;    /* the greatest finish of all flows */
	u64 rt_due;    /* token bucket of all channels */
	u64 rt_time;   /* time that the queued real-time packets take, ns */
	u32 rt_bytes;
	u32 be_bytes;
	u32 fallback; /* no heartbeat: FIFO */
	u32 single;   /* there is an `only` */
	struct link_stats stats;
	struct flow flow[FLOWS];
};

/* Names the types in the object's BTF so that the Rust half can be generated. */
struct {
	struct link_key link_key;
	struct match_key match_key;
	struct link_settings link_settings;
	struct channel_settings channel_settings;
	struct channel_state channel_state;
	struct link_stats link_stats;
	struct label label;
	struct registry registry;
	enum heartbeat_time heartbeat_time;
} layouts SEC(".data.layouts");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__uint(max_entries, MAX_LINKS);
	__type(key, struct link_key);
	__type(value, u32);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__uint(max_entries, MAX_LINKS);
	__type(key, u32);
	__type(value, u32);
} current SEC(".maps");

/* By SETTINGS_PER_LINK times the slot, plus what `current` says. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__uint(max_entries, MAX_LINKS *SETTINGS_PER_LINK);
	__type(key, u32);
	__type(value, struct link_settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_LINKS);
	__type(key, u32);
	__type(value, struct link_state);
} states SEC(".maps");

/*
 * When the wire of a slot's link will have sent what it was given (sent.bpf.h). Not in link_state, whose
 * layout other releases know; no process opens this map, and it is not pinned.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_LINKS);
	__type(key, u32);
	__type(value, u64);
} wire_free SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__uint(max_entries, MAX_MATCHES);
	__type(key, struct match_key);
	__type(value, struct channel_settings);
} matches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CHANNELS);
	__type(key, u32);
	__type(value, struct channel_state);
} channels SEC(".maps");

/* By the index of `channels`. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__uint(max_entries, MAX_CHANNELS);
	__type(key, u32);
	__type(value, struct label);
} labels SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct registry);
} registry SEC(".maps");

/* How many links have the qdisc; the same in every release, as an agent has to know it of any. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} users SEC(".maps");

#endif
