/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What kernels differ in that CAST runs on, by name. The only file that tests
 * versions; compat/kernel.h turns the names into calls.
 */
#ifndef _LRU_CAST_CAPS_H
#define _LRU_CAST_CAPS_H

#include <linux/version.h>

/* page->flags is a memdesc_flags_t; system_dfl_wq is the unbound workqueue. */
#define CAST_CAP_FLAGS_TYPED	(LINUX_VERSION_CODE >= KERNEL_VERSION(6, 18, 0))
#define CAST_CAP_DFL_WQ		(LINUX_VERSION_CODE >= KERNEL_VERSION(6, 18, 0))

/*
 * An LRU folio's memcg_data points to its obj_cgroup, an offline memcg's
 * lists are spliced onto its parent's, and lruvec_unlock_irq() exists.
 */
#define CAST_CAP_OBJCG_LRU	(LINUX_VERSION_CODE >= KERNEL_VERSION(7, 1, 0))

/* The aging of nonresident pages is private to mm/: mm/internal.h has it. */
#define CAST_CAP_AGE_PRIVATE	(LINUX_VERSION_CODE >= KERNEL_VERSION(7, 3, 0))

#endif /* _LRU_CAST_CAPS_H */
