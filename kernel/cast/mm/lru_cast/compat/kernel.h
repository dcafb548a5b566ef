/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * One name for each call that kernels spell differently. Below every layer:
 * all may include it.
 */
#ifndef _LRU_CAST_KERNEL_H
#define _LRU_CAST_KERNEL_H

#include <linux/mm_types.h>
#include <linux/spinlock.h>
#include <linux/swap.h>
#include <linux/workqueue.h>

#include "caps.h"

/* The word of flags of @folio, for reading. */
static inline unsigned long cast_folio_flags(const struct folio *folio)
{
#if CAST_CAP_FLAGS_TYPED
	return READ_ONCE(folio->flags.f);
#else
	return READ_ONCE(folio->flags);
#endif
}

/* For work that may run on any CPU and for long. */
static inline struct workqueue_struct *cast_wq(void)
{
#if CAST_CAP_DFL_WQ
	return system_dfl_wq;
#else
	return system_unbound_wq;
#endif
}

#endif /* _LRU_CAST_KERNEL_H */
