/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Reads of many folios in a row, for who knows them as such: read() and
 * unmapping. Nearly all of them add nothing to what CAST knows, and end here,
 * in a few instructions and without a call.
 */
#ifndef _LINUX_LRU_CAST_READ_H
#define _LINUX_LRU_CAST_READ_H

#include <linux/bits.h>
#include <linux/lru_cast.h>
#include <linux/mm.h>
#include <linux/page-flags.h>

/*
 * What the last folio told of the next: of one cgroup and one zone, and so of
 * one lruvec, they are at one time. For no longer than a batch of folios or
 * one page table, since time passes meanwhile.
 */
struct cast_reader {
#ifdef CONFIG_LRU_CAST
	const u32 *words;	/* state words, by frame */
	unsigned long owner;	/* memcg_data, never followed */
	unsigned long flags;	/* of CAST_READ_FLAGS; ~0: no folio's yet */
	u32 told;		/* CAST_TOLD_FIELDS of a word that is told */
#endif
};

#ifdef CONFIG_LRU_CAST

#if defined(CONFIG_PAGE_IDLE_FLAG) && defined(CONFIG_64BIT)
#define CAST_READ_IDLE		BIT(PG_idle)
#else
#define CAST_READ_IDLE		0UL
#endif

/* Folios that are equal in these are read in the same way. */
#define CAST_READ_FLAGS		((NODES_MASK << NODES_PGSHIFT) | \
				 (ZONES_MASK << ZONES_PGSHIFT) | \
				 BIT(PG_referenced) | BIT(PG_swapbacked) | \
				 CAST_READ_IDLE)

/* cast_word_is_told() in masks; hooks.c holds them against core/word.h. */
#define CAST_TOLD_FIELDS	0x01ff0f00U	/* tick, last gap */
#define CAST_TOLD_COUNT		0x000000feU	/* two reads or more */

bool __cast_read_next(struct folio *folio, struct cast_reader *reader);

static inline void cast_read_begin(struct cast_reader *reader)
{
	reader->flags = ~0UL;
}

static inline unsigned long cast_read_flags(const struct folio *folio)
{
	return READ_ONCE(*const_folio_flags(folio, 0)) & CAST_READ_FLAGS;
}

static inline unsigned long cast_read_owner(const struct folio *folio)
{
#ifdef CONFIG_MEMCG
	return READ_ONCE(folio->memcg_data);
#else
	return 0;
#endif
}

/* As cast_read(), with what @reader knows. */
static inline bool cast_read_next(struct folio *folio,
				  struct cast_reader *reader)
{
	u32 word;

	if (!lru_cast_on())
		return false;
	if (unlikely(cast_read_flags(folio) != reader->flags ||
		     cast_read_owner(folio) != reader->owner))
		return __cast_read_next(folio, reader);
	word = READ_ONCE(reader->words[folio_pfn(folio)]);
	if (likely((word & CAST_TOLD_FIELDS) == reader->told &&
		   word & CAST_TOLD_COUNT))
		return true;
	return __cast_read_next(folio, reader);
}

#else /* !CONFIG_LRU_CAST */

static inline void cast_read_begin(struct cast_reader *reader) { }

static inline bool cast_read_next(struct folio *folio,
				  struct cast_reader *reader)
{
	return false;
}

#endif /* CONFIG_LRU_CAST */
#endif /* _LINUX_LRU_CAST_READ_H */
