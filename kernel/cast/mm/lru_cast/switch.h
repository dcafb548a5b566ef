/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _LRU_CAST_SWITCH_H
#define _LRU_CAST_SWITCH_H

#include <linux/types.h>

#define CAST_VERSION	"0.1.0"

/*
 * Switches CAST on or off; may sleep. -EBUSY while MGLRU is on, -ENOMEM if
 * the state cannot be set up, and then everything is as it was.
 */
int cast_enable(bool on);

struct lruvec;

/*
 * Calls @fn for every lruvec while CAST is on and cannot be switched; @state,
 * which @fn keeps its findings in, is cleared before. -ENODEV if it is off.
 */
int cast_for_each_lruvec_on(int (*fn)(struct lruvec *lruvec, int nid),
			    void *state, size_t size);

/* /sys/kernel/mm/lru_cast/ */
int cast_sysfs_init(void);

#endif /* _LRU_CAST_SWITCH_H */
