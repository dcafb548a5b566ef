/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The lowest layer: state words, the pressure clock, the key. It knows of no
 * lruvec and no list; policy/ and tune/ build on it.
 */
#ifndef _LRU_CAST_CORE_H
#define _LRU_CAST_CORE_H

#include <linux/atomic.h>
#include <linux/types.h>

#include "word.h"
#include "key.h"

/* --- state.c: one word per page frame, an array indexed by PFN --- */

extern u32 *cast_words;

/*
 * Reserves the array and backs it for the memory that is online; hot-plug is
 * followed from then on. Once, on first use; may sleep. 0, or an errno with
 * nothing left behind.
 */
int cast_state_init(void);
/* Forgets everything: before CAST is switched on, while no hook runs. */
void cast_state_clear(void);

/*
 * True if the words around @pfn are there, so that pfn's word may be read
 * without holding the page. To be asked, and used, under rcu_read_lock():
 * memory that goes offline takes its words away after a grace period.
 */
bool cast_section_present(unsigned long pfn);
/* First frame past the section of @pfn: where a sweep goes on if it is absent. */
unsigned long cast_section_end(unsigned long pfn);

/*
 * The rest is for frames that the caller holds (a reference, or a list lock),
 * or whose section it found present. Lock-free; any context.
 */
static inline u32 cast_word(unsigned long pfn)
{
	return READ_ONCE(cast_words[pfn]);
}

/*
 * A read at @now; @arrived: the first since the page came in. True if it was
 * recorded: of those within a tick, one more than the arrival.
 */
bool cast_word_note_read(unsigned long pfn, u32 now, bool arrived);
/* Gives @pfn the history of @from, keeping the frame's own tag. */
void cast_word_set_history(unsigned long pfn, u32 from);
void cast_word_fresh(unsigned long pfn, u32 now);
void cast_word_cold(unsigned long pfn, u32 now);
void cast_word_set_owner(unsigned long pfn, u32 tag);
/* Nothing known, nobody's: for the tail frames of a folio that is formed. */
void cast_word_forget(unsigned long pfn);

/*
 * Rewrites a word of age CAST_AGE_OLD or more so that its tick does not wrap:
 * the count decays instead. Returns the word as it is then.
 */
u32 cast_word_normalise(unsigned long pfn, u32 now, u32 le);

/* --- clock.c: time is what is taken in --- */

/*
 * One per lruvec, changed under its lru_lock. @tick only grows; words keep
 * its low bits, so whatever compares words takes the whole of it.
 */
struct cast_clock {
	s64 intake;		/* since the last tick, in parts; below 0 if freed */
	atomic_long_t left;	/* what evictions add to it, not yet settled */
	unsigned long step;	/* pages a tick */
	unsigned long in;	/* pages taken in, not yet in the node's sum */
	u32 tick;
};

/* A node's sums over all its lruvecs, for sysfs `clock`. */
struct cast_node_clock {
	u64 in;			/* pages taken in */
	u64 evicted;		/* pages evicted */
};

void cast_clock_init(struct cast_clock *clock);

static inline s64 cast_clock_step(const struct cast_clock *clock)
{
	return (s64)clock->step * CAST_PARTS;
}

/* Pages taken in. True if a tick is due: then cast_clock_tick(). */
static inline bool cast_clock_in(struct cast_clock *clock, unsigned long nr)
{
	clock->in += nr;
	clock->intake += (s64)nr * CAST_PARTS_ROOM;
	return clock->intake >= cast_clock_step(clock);
}

/* Pages that left by their owner's will, not by reclaim. */
static inline void cast_clock_free(struct cast_clock *clock, unsigned long nr)
{
	clock->intake -= (s64)nr * CAST_PARTS_ROOM;
}

/*
 * Pages that reclaim took, and of these, what had been read once. What nobody
 * asked for again is no news of how long pages are of use: a stream of such
 * pages passes in a sixteenth of the time, or the pages around it would seem
 * as old as it is long. Any context; cast_clock_settle() takes it over.
 */
static inline void cast_clock_left(struct cast_clock *clock, unsigned long nr,
				   bool once)
{
	long parts = once ? CAST_PARTS_ONCE : CAST_PARTS;

	atomic_long_add((parts - (long)CAST_PARTS_ROOM) * (long)nr,
			&clock->left);
}

static inline void cast_clock_settle(struct cast_clock *clock)
{
	clock->intake += atomic_long_xchg(&clock->left, 0);
}

/* The time passes; @pages are on the lruvec's lists now. */
void cast_clock_tick(struct cast_clock *clock, int nid, unsigned long pages);
/* Adds what the clock still holds to its node's sum: the lruvec goes. */
void cast_clock_flush(struct cast_clock *clock, int nid);
void cast_clock_evicted(int nid, unsigned long nr);
struct cast_node_clock cast_clock_read(int nid);

/* May be read without the lock: a tick late is no harm. */
static inline u32 cast_clock_now(const struct cast_clock *clock)
{
	return READ_ONCE(clock->tick);
}

#endif /* _LRU_CAST_CORE_H */
