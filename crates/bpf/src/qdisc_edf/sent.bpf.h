/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a packet that leaves the queue means for the link and for its channel: how long it occupies the link,
 * when the next one may leave, and its delay.
 *
 * Two clocks run ahead with each packet. `next_free` is when the next packet may leave: behind it the queue
 * makes up for an idle time of the link, or for a late timer, up to `credit`. `wire_free` is when the wire
 * will have sent what it was given: it makes up for nothing, as no wire sends faster than its rate. While the
 * link is paced
 *
 *   next_free <= wire_free <= next_free + credit
 *
 * as both grow by the same time, the one from max(next_free, now - credit), the other from max(wire_free,
 * now).
 */
#ifndef TEIJI_QDISC_EDF_SENT_H
#define TEIJI_QDISC_EDF_SENT_H

static __always_inline u64 max(u64 a, u64 b)
{
	return a > b ? a : b;
}

static __always_inline u32 bucket_of(u64 v)
{
	u32 log = 0;

	if (v >> 32) {
		log += 32;
		v >>= 32;
	}
	if (v >> 16) {
		log += 16;
		v >>= 16;
	}
	if (v >> 8) {
		log += 8;
		v >>= 8;
	}
	if (v >> 4) {
		log += 4;
		v >>= 4;
	}
	if (v >> 2) {
		log += 2;
		v >>= 2;
	}
	log += v >> 1;
	return log < DELAY_BUCKETS ? log : DELAY_BUCKETS - 1;
}

/*
 * When the next packet may leave, after one that takes `tx` leaves now. What is not paced (`paced` is false:
 * there is no rate, or no heartbeat) owes no time and saves none up for when pacing starts again.
 */
static __always_inline u64 next_after(u64 next_free, u64 credit, u64 now, u64 tx, bool paced)
{
	return (paced ? max(next_free, now - credit) : now) + tx;
}

/*
 * When the last bit of a packet that leaves now is on the wire. What is not paced counts from now: how fast
 * the device then sends is not known.
 */
static __always_inline u64 last_bit(u64 wire_free, u64 now, u64 tx, bool paced)
{
	return (paced ? max(wire_free, now) : now) + tx;
}

/*
 * Counts a real-time packet whose last bit is sent at `end`. The guarantee covers the last bit on the wire,
 * so the delay ends there, and the packet is late if that is after its deadline.
 */
static __always_inline void account_sent(const struct queued *is, u64 end)
{
	u32 id = is->channel, bucket;
	struct channel_state *cs = bpf_map_lookup_elem(&channels, &id);
	u64 delay;

	if (!cs)
		return;
	/* the clock of the CPU that it arrived on may be slightly ahead of this CPU's clock */
	delay = end > is->arrival ? end - is->arrival : 0;
	bucket = bucket_of(delay);
	cs->stats.packets++;
	cs->stats.bytes += is->len;
	cs->stats.delay_sum += delay;
	cs->stats.delay_max = max(cs->stats.delay_max, delay);
	cs->stats.misses += end > is->key;
	if (bucket < DELAY_BUCKETS)
		cs->stats.delay[bucket]++;
}

#endif
