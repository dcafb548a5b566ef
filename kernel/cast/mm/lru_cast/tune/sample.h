/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The sample: which pages are of it, the rings that carry their accesses from
 * where they happen, and the work that runs the controllers over them.
 */
#ifndef _LRU_CAST_SAMPLE_H
#define _LRU_CAST_SAMPLE_H

#include <linux/mutex.h>
#include <linux/types.h>

#include "control.h"

/* Held while the controllers run, and to look at or set what they hold. */
extern struct mutex cast_sample_lock;
/* Of file pages; NULL until the sample was first started. */
extern struct cast_control *cast_sample_file;

struct cast_sample_counts {
	u64 events;	/* accesses that came */
	u64 added;	/* of those, pages that memory really took in */
	u64 lost;	/* for which a ring or the sample had no room */
	u64 cpu_ns;	/* that the controllers took */
	u32 threshold;	/* blocks of a lower hash are sampled: of 2^32 */
};

struct cast_sample_counts cast_sample_counts(void);

/*
 * Called by the work, with the lock held, when decay and share may be set:
 * the one place where the controllers' choice is taken over.
 */
void cast_sample_chose(struct cast_control *control);

#endif /* _LRU_CAST_SAMPLE_H */
