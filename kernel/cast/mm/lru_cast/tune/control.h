/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * One type's controllers over one sample: what is fed with accesses and
 * answers with a decay and a share. Pure: sample.c feeds it in the kernel,
 * traces in user space.
 */
#ifndef _LRU_CAST_CONTROL_H
#define _LRU_CAST_CONTROL_H

#include <linux/types.h>

#include "decay.h"
#include "pages.h"
#include "wshare.h"

struct cast_control {
	struct cast_pages pages;
	struct cast_decay decay;
	struct cast_wshare wshare;
	u32 capacity;	/* of the sample: pages that memory has room for */
	u32 blocks;	/* that these pages are of */
	u64 accesses;
	u64 misses;	/* of the centre */
};

/* May sleep. 0 or -ENOMEM with nothing left behind. */
int cast_control_init(struct cast_control *control);
void cast_control_exit(struct cast_control *control);
/* Knows no page, and is at the start's decay and share. */
void cast_control_clear(struct cast_control *control);
/* Starts over with no page, keeping the decay and the share. */
void cast_control_restart(struct cast_control *control);

/* Memory has room for so many pages of the sample, of so many blocks. */
void cast_control_set_capacity(struct cast_control *control, u32 capacity,
			       u32 blocks);
void cast_control_set_le(struct cast_control *control, u32 le);
void cast_control_set_w(struct cast_control *control, u32 w_permille);

/* An access to the page @id of @block. False if there was no room for it. */
bool cast_control_access(struct cast_control *control, u64 id, u32 block);
/* Moves decay and share where there is evidence. True if either moved. */
bool cast_control_choose(struct cast_control *control);
/* Forgets the pages for which @gone says so. */
void cast_control_drop(struct cast_control *control,
		       bool (*gone)(u64 id, u64 arg), u64 arg);

static inline u32 cast_control_le(const struct cast_control *control)
{
	return cast_decay_le(&control->decay);
}

static inline u32 cast_control_w(const struct cast_control *control)
{
	return control->wshare.w_permille;
}

#endif /* _LRU_CAST_CONTROL_H */
