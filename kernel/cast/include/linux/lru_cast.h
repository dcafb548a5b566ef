/* SPDX-License-Identifier: GPL-2.0 */
/*
 * CAST: replacement of pages by a decayed count of their reads (LRFU).
 *
 * The header of CAST that the rest of mm/ includes, with lru_cast_read.h for
 * reads in a row. Every hook is an inline test of a static key around an out-of-line call, so a kernel that
 * runs without CAST pays one not-taken jump; with CONFIG_LRU_CAST=n all of
 * it is empty.
 *
 * The stock lists stay: W, the window of newcomers, is the inactive list, M,
 * the rest, is the active list. Nothing moves when CAST is switched.
 */
#ifndef _LINUX_LRU_CAST_H
#define _LINUX_LRU_CAST_H

#include <linux/jump_label.h>
#include <linux/mmzone.h>
#include <linux/page-flags.h>
#include <linux/types.h>

struct folio;
struct lruvec;
struct mem_cgroup;
struct page;

/*
 * One batch of reclaim from one lruvec. scan_control stays private to
 * vmscan.c, and so do unmapping, writing and freeing: CAST only chooses which
 * folios shrink_inactive_list() gets.
 */
struct cast_scan {
	unsigned long nr_to_scan;	/* pages wanted */
	unsigned long nr_scanned;	/* pages looked at, out */
	unsigned long nr_skipped;	/* of zones not asked for, out */
	int reclaim_idx;		/* highest zone that is asked for */
	bool file;
	bool may_unmap;
};

#ifdef CONFIG_LRU_CAST

DECLARE_STATIC_KEY_FALSE(lru_cast_key);

static inline bool lru_cast_on(void)
{
	return static_branch_unlikely(&lru_cast_key);
}

/* Anonymous memory stays with the stock lists: see stage 3. */
static inline bool lru_cast_on_type(bool file)
{
	return lru_cast_on() && file;
}

static inline bool lru_cast_on_folio(const struct folio *folio)
{
	return lru_cast_on() && !folio_test_swapbacked(folio);
}

/* Out of line: hooks.c, unless said otherwise. */
void __cast_read(struct folio *folio);
void __cast_new(struct folio *folio);
void __cast_cold(struct folio *folio);
void __cast_copy(struct folio *dst, struct folio *src);
void __cast_split(struct folio *folio, unsigned int new_order);
void __cast_added(struct lruvec *lruvec, struct folio *folio);
void __cast_deleted(struct lruvec *lruvec, struct folio *folio);
void __cast_taken_in(struct lruvec *lruvec, struct folio *folio);
void __cast_owner_freed(struct lruvec *lruvec, struct folio *folio);

/* policy/shadow.c */
void *cast_pack(struct folio *folio, struct mem_cgroup *target_memcg);
bool cast_shadow(const void *shadow);
void cast_refault(struct folio *folio, void *shadow);
bool cast_test_recent(void *shadow, bool file, bool *workingset);

/* policy/reclaim.c, policy/lruvec.c */
bool cast_prepare(struct lruvec *lruvec, bool file);
unsigned long cast_isolate(struct lruvec *lruvec, struct cast_scan *scan,
			   struct list_head *dst);
void cast_evicted(struct lruvec *lruvec, bool file, unsigned long nr);
bool cast_floor_holds(struct pglist_data *pgdat);
int cast_lruvec_init(struct lruvec *lruvec, int nid);
void cast_lruvec_exit(struct lruvec *lruvec);

/*
 * hooks.c: reclaim found @folio young. Whether that is one read more; if not,
 * it was the arrival's own mark in the page table. @again: other evidence.
 */
bool cast_young(struct folio *folio, bool again);

/* Whether reclaim takes this type of this lruvec's pages by CAST's choice. */
static inline bool cast_owns(const struct lruvec *lruvec, bool file)
{
	return lru_cast_on_type(file) && READ_ONCE(lruvec->cast);
}

/* switch.c: whether MGLRU may be switched on now; 0 or -EBUSY. */
int cast_switch_allowed(void);

/*
 * A read of @folio. Any context: no lock is taken, nothing sleeps. True if
 * CAST owns the folio's type, so that the caller leaves PG_referenced and the
 * lists alone.
 */
static inline bool cast_read(struct folio *folio)
{
	if (!lru_cast_on_folio(folio))
		return false;
	__cast_read(folio);
	return true;
}

/* A folio enters the page cache: read once, now. Folio locked and charged. */
static inline void cast_new(struct folio *folio)
{
	if (lru_cast_on_folio(folio))
		__cast_new(folio);
}

/*
 * The owner says it is not wanted (DONTNEED, COLD, lazy free). True if CAST
 * owns the folio's type.
 */
static inline bool cast_cold(struct folio *folio)
{
	if (!lru_cast_on_folio(folio))
		return false;
	__cast_cold(folio);
	return true;
}

/* Migration: @dst replaces @src, both locked. */
static inline void cast_copy(struct folio *dst, struct folio *src)
{
	if (lru_cast_on_folio(src))
		__cast_copy(dst, src);
}

/* A large folio is split into folios of @new_order: all inherit its word. */
static inline void cast_split(struct folio *folio, unsigned int new_order)
{
	if (lru_cast_on_folio(folio))
		__cast_split(folio, new_order);
}

/* The list primitives, under lru_lock: M's membership is PG_active + tag. */
static inline void cast_added(struct lruvec *lruvec, struct folio *folio)
{
	if (lru_cast_on_folio(folio))
		__cast_added(lruvec, folio);
}

static inline void cast_deleted(struct lruvec *lruvec, struct folio *folio)
{
	if (lru_cast_on_folio(folio) && folio_test_active(folio))
		__cast_deleted(lruvec, folio);
}

/* Pages that the lruvec takes in, under lru_lock: time passes. */
static inline void cast_taken_in(struct lruvec *lruvec, struct folio *folio)
{
	if (lru_cast_on_folio(folio))
		__cast_taken_in(lruvec, folio);
}

/* Pages that left by their owner's will, under lru_lock: time did not pass. */
static inline void cast_owner_freed(struct lruvec *lruvec,
				    struct folio *folio)
{
	if (lru_cast_on_folio(folio))
		__cast_owner_freed(lruvec, folio);
}

#else /* !CONFIG_LRU_CAST */

static inline bool lru_cast_on(void)
{
	return false;
}

static inline bool lru_cast_on_type(bool file)
{
	return false;
}

static inline bool lru_cast_on_folio(const struct folio *folio)
{
	return false;
}

static inline bool cast_read(struct folio *folio)
{
	return false;
}

static inline void cast_new(struct folio *folio) { }

static inline bool cast_cold(struct folio *folio)
{
	return false;
}

static inline void cast_copy(struct folio *dst, struct folio *src) { }
static inline void cast_split(struct folio *folio, unsigned int new_order) { }
static inline void cast_added(struct lruvec *lruvec, struct folio *folio) { }
static inline void cast_deleted(struct lruvec *lruvec, struct folio *folio) { }
static inline void cast_taken_in(struct lruvec *lruvec,
				 struct folio *folio) { }
static inline void cast_owner_freed(struct lruvec *lruvec,
				    struct folio *folio) { }
static inline void cast_lruvec_exit(struct lruvec *lruvec) { }
static inline void cast_evicted(struct lruvec *lruvec, bool file,
				unsigned long nr) { }

static inline int cast_lruvec_init(struct lruvec *lruvec, int nid)
{
	return 0;
}

static inline bool cast_prepare(struct lruvec *lruvec, bool file)
{
	return false;
}

static inline bool cast_floor_holds(struct pglist_data *pgdat)
{
	return false;
}

static inline unsigned long cast_isolate(struct lruvec *lruvec,
					 struct cast_scan *scan,
					 struct list_head *dst)
{
	return 0;
}

static inline bool cast_young(struct folio *folio, bool again)
{
	return false;
}

static inline bool cast_owns(const struct lruvec *lruvec, bool file)
{
	return false;
}

static inline void *cast_pack(struct folio *folio,
			      struct mem_cgroup *target_memcg)
{
	return NULL;
}

static inline bool cast_shadow(const void *shadow)
{
	return false;
}

static inline void cast_refault(struct folio *folio, void *shadow) { }

static inline bool cast_test_recent(void *shadow, bool file, bool *workingset)
{
	return false;
}

static inline int cast_switch_allowed(void)
{
	return 0;
}

#endif /* CONFIG_LRU_CAST */
#endif /* _LINUX_LRU_CAST_H */
