/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The controllers: what decay and what share of newcomers the cache uses,
 * by hand or by what a sample of its pages shows.
 *
 * Types are numbered as folio_is_file_lru() does: 0 anonymous, 1 file.
 */
#ifndef _LRU_CAST_TUNE_H
#define _LRU_CAST_TUNE_H

#include <linux/types.h>

#include "../core/key.h"

struct folio;

#define CAST_TYPES		2

/* W's share of a type's pages, in permille. */
#define CAST_W_START		100
#define CAST_W_MIN		10
#define CAST_W_MAX		800
/* How far the controller goes: outside there is little to gain and much to lose. */
#define CAST_W_AUTO_MIN		25
#define CAST_W_AUTO_MAX		300

enum cast_event_kind {
	CAST_EV_READ,	/* a read that its state word recorded */
	CAST_EV_ADD,	/* a page that was taken in */
};

/* What reclaim is to use now; cheap, any context. */
u32 cast_le(bool file);
u32 cast_w_permille(bool file);

/*
 * Tells the sample. Any context, lock-free; nothing is computed here but
 * whether the page is of the sample.
 */
void cast_tune_event(struct folio *folio, enum cast_event_kind kind);

/*
 * Gets the memory of the sample, once, and forgets what it held: before CAST
 * is switched on. May sleep. 0 or -ENOMEM.
 */
int cast_tune_start(void);
/* No event comes any more (the static key is off): waits for the drain. */
void cast_tune_stop(void);

/*
 * By hand, for both types; stops the controllers. -EINVAL if a value is out
 * of range, and then nothing changes.
 */
int cast_tune_set_le(const u32 le[CAST_TYPES]);
int cast_tune_set_w(const u32 w_permille[CAST_TYPES]);

bool cast_tune_auto(void);
void cast_tune_set_auto(bool on);

/* sysfs `tune`: PAGE_SIZE at most. Returns what was written. */
ssize_t cast_tune_show(char *buf);

#endif /* _LRU_CAST_TUNE_H */
