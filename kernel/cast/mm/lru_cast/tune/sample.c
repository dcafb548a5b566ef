// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pages are sampled by blocks of 32 of one file, so that what is read ahead
 * together is in the sample together. A block is in it if the hash of file
 * and block is below a threshold, which is all that an access costs most
 * pages; the few others leave a note in a ring of their CPU.
 */
#include <linux/kernel.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/percpu.h>
#include <linux/slab.h>
#include <linux/vmstat.h>
#include <linux/workqueue.h>

#include "../compat/kernel.h"
#include "sample.h"
#include "tune.h"

#define BLOCK_SHIFT	5
#define BLOCK_PAGES	(1U << BLOCK_SHIFT)
#define RING_EVENTS	256U	/* a power of two */
#define DRAIN_AT	(RING_EVENTS / 2)

/* Evidence is looked at every so many accesses. */
#define CHOOSE_EVERY	64U

/*
 * Of the pages that memory holds, about this many are wanted in the sample;
 * with their ghosts that makes about 15,000. The rate is halved above the
 * one and doubled below the other.
 */
#define CAPACITY_HIGH	6144U
#define CAPACITY_LOW	2048U
#define RATE_LOWEST	(1U << 8)

struct event {
	u64 hash;	/* of file and block */
	u8 first;	/* page in the block */
	u8 nr;		/* pages */
	u8 kind;
};

struct ring {
	u32 head;	/* written by the CPU alone, interrupts off */
	u32 tail;	/* written by the work alone */
	u64 lost;
	struct event event[RING_EVENTS];
};

static DEFINE_PER_CPU(struct ring, rings);

DEFINE_MUTEX(cast_sample_lock);
struct cast_control *cast_sample_file;

static u32 threshold __read_mostly = U32_MAX;
static struct cast_sample_counts counts;

static void drain(struct work_struct *work);
static DECLARE_WORK(drain_work, drain);

/* --- events: any context --- */

/* Its upper half decides, so all of its bits must be mixed. */
static u64 block_hash(const void *mapping, unsigned long block)
{
	u64 x = (u64)(unsigned long)mapping + block * 0x9e3779b97f4a7c15ULL;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

static void push(u64 hash, u32 first, u32 nr, enum cast_event_kind kind)
{
	struct ring *ring;
	unsigned long flags;
	u32 used;

	local_irq_save(flags);
	ring = this_cpu_ptr(&rings);
	/* Pairs with the work's release: the slot was read. */
	used = ring->head - smp_load_acquire(&ring->tail);
	if (used < RING_EVENTS) {
		ring->event[ring->head & (RING_EVENTS - 1)] = (struct event) {
			.hash = hash,
			.first = first,
			.nr = nr,
			.kind = kind,
		};
		/* Pairs with the work's acquire: the event is there. */
		smp_store_release(&ring->head, ring->head + 1);
	} else {
		ring->lost++;
	}
	local_irq_restore(flags);
	if (used == DRAIN_AT || used == RING_EVENTS)
		queue_work(cast_wq(), &drain_work);
}

void cast_tune_event(struct folio *folio, enum cast_event_kind kind)
{
	/* The pointer only names the file: it is not followed. */
	const void *mapping = READ_ONCE(folio->mapping);
	unsigned long index = READ_ONCE(folio->index);
	unsigned long end = index + folio_nr_pages(folio);
	u32 below = READ_ONCE(threshold);

	if (!mapping || (unsigned long)mapping & PAGE_MAPPING_FLAGS)
		return;
	while (index < end) {
		unsigned long next = min(end, round_down(index, BLOCK_PAGES) +
					      BLOCK_PAGES);
		u64 hash = block_hash(mapping, index >> BLOCK_SHIFT);

		if (hash >> 32 < below)
			push(hash, index & (BLOCK_PAGES - 1), next - index,
			     kind);
		index = next;
	}
}

/* --- the work --- */

static bool not_sampled(u64 id, u64 below)
{
	return id >> 32 >= below;
}

static u32 sampled_of(unsigned long pages)
{
	return min_t(u64, (u64)pages * threshold >> 32, U32_MAX);
}

/*
 * Memory grows and shrinks, and with it what the sample stands for. Blocks
 * that join at a higher rate are unknown to all caches alike, so nothing is
 * counted for or against one.
 */
static void follow_size(struct cast_control *control)
{
	unsigned long pages = global_node_page_state(NR_ACTIVE_FILE) +
			      global_node_page_state(NR_INACTIVE_FILE);
	u32 capacity = sampled_of(pages);

	while (capacity > CAPACITY_HIGH && threshold > RATE_LOWEST) {
		WRITE_ONCE(threshold, threshold / 2);
		cast_control_drop(control, not_sampled, threshold);
		capacity = sampled_of(pages);
	}
	while (capacity < CAPACITY_LOW && threshold < U32_MAX) {
		WRITE_ONCE(threshold, threshold > U32_MAX / 2 ? U32_MAX :
							threshold * 2 + 1);
		capacity = sampled_of(pages);
	}
	cast_control_set_capacity(control, capacity, capacity / BLOCK_PAGES);
}

/* As an id, a page's hash is its block's, with its own place in the block. */
static void play(struct cast_control *control, const struct event *event)
{
	/* No page's id may be 0. */
	u64 base = (event->hash & ~(u64)(BLOCK_PAGES - 1)) | BLOCK_PAGES;
	u32 block = (u32)(event->hash >> BLOCK_SHIFT);
	u32 i;

	if (event->kind == CAST_EV_ADD)
		counts.added += event->nr;
	for (i = 0; i < event->nr; i++) {
		if (!cast_control_access(control, base | (event->first + i),
					 block))
			counts.lost++;
		if (++counts.events % CHOOSE_EVERY == 0)
			cast_sample_chose(control);
	}
}

static void drain_ring(struct cast_control *control, struct ring *ring)
{
	u32 tail = ring->tail, head;

	/* Pairs with the release in push(): the events are there. */
	head = smp_load_acquire(&ring->head);
	while (tail != head) {
		struct event event = ring->event[tail & (RING_EVENTS - 1)];

		/* The slot may be written again from here on. */
		smp_store_release(&ring->tail, ++tail);
		/* The rate may have been lowered since it was pushed. */
		if (event.hash >> 32 < threshold)
			play(control, &event);
	}
}

static void drain(struct work_struct *work)
{
	struct cast_control *control;
	u64 begin = ktime_get_ns();
	int cpu;

	mutex_lock(&cast_sample_lock);
	control = cast_sample_file;
	if (control) {
		follow_size(control);
		for_each_possible_cpu(cpu) {
			drain_ring(control, per_cpu_ptr(&rings, cpu));
			cond_resched();
		}
	}
	counts.cpu_ns += ktime_get_ns() - begin;
	mutex_unlock(&cast_sample_lock);
}

/* --- starting and stopping --- */

static struct cast_control *new_control(void)
{
	struct cast_control *control = kvzalloc(sizeof(*control), GFP_KERNEL);

	if (control && cast_control_init(control)) {
		kvfree(control);
		return NULL;
	}
	return control;
}

int cast_tune_start(void)
{
	int cpu, err = 0;

	mutex_lock(&cast_sample_lock);
	if (!cast_sample_file)
		cast_sample_file = new_control();
	if (!cast_sample_file) {
		err = -ENOMEM;
		goto out;
	}
	/* What came before is of another time. */
	for_each_possible_cpu(cpu) {
		struct ring *ring = per_cpu_ptr(&rings, cpu);

		/* As the work would, had it read them. */
		smp_store_release(&ring->tail, READ_ONCE(ring->head));
	}
	cast_control_restart(cast_sample_file);
	/* What was set by hand meanwhile holds. */
	cast_control_set_le(cast_sample_file, cast_le(true));
	cast_control_set_w(cast_sample_file, cast_w_permille(true));
out:
	mutex_unlock(&cast_sample_lock);
	return err;
}

void cast_tune_stop(void)
{
	cancel_work_sync(&drain_work);
}

struct cast_sample_counts cast_sample_counts(void)
{
	struct cast_sample_counts sum = counts;
	int cpu;

	for_each_possible_cpu(cpu)
		sum.lost += per_cpu_ptr(&rings, cpu)->lost;
	sum.threshold = threshold;
	return sum;
}
