// SPDX-License-Identifier: GPL-2.0-only
#include <linux/errno.h>
#include <linux/kernel.h>
#include <linux/minmax.h>
#include <linux/string.h>

#include "control.h"
#include "tune.h"

int cast_control_init(struct cast_control *control)
{
	int err;

	memset(control, 0, sizeof(*control));
	err = cast_pages_init(&control->pages);
	if (err)
		return err;
	err = cast_decay_init(&control->decay, &control->pages);
	if (err)
		goto no_decay;
	err = cast_wshare_init(&control->wshare, &control->pages);
	if (err)
		goto no_wshare;
	cast_control_clear(control);
	return 0;

no_wshare:
	cast_decay_exit(&control->decay);
no_decay:
	cast_pages_exit(&control->pages);
	return err;
}

void cast_control_exit(struct cast_control *control)
{
	cast_wshare_exit(&control->wshare);
	cast_decay_exit(&control->decay);
	cast_pages_exit(&control->pages);
}

void cast_control_clear(struct cast_control *control)
{
	cast_pages_clear(&control->pages);
	cast_decay_clear(&control->decay);
	cast_wshare_clear(&control->wshare);
	control->capacity = 0;
	control->accesses = 0;
	control->misses = 0;
	cast_control_set_capacity(control, 2, 1);
}

void cast_control_restart(struct cast_control *control)
{
	u32 capacity = control->capacity, blocks = control->blocks;
	u32 le = cast_control_le(control), w = cast_control_w(control);

	cast_control_clear(control);
	cast_control_set_le(control, le);
	cast_control_set_w(control, w);
	cast_control_set_capacity(control, capacity, blocks);
}

void cast_control_set_capacity(struct cast_control *control, u32 capacity,
			       u32 blocks)
{
	control->capacity = capacity;
	control->blocks = blocks;
	cast_decay_set_blocks(&control->decay, blocks);
	cast_pages_set_capacity(&control->pages, capacity);
	cast_decay_set_size(&control->decay, capacity,
			    cast_control_w(control));
	cast_wshare_set_size(&control->wshare, capacity);
}

void cast_control_set_le(struct cast_control *control, u32 le)
{
	cast_decay_set_le(&control->decay, le);
	cast_wshare_set_le(&control->wshare, le);
}

void cast_control_set_w(struct cast_control *control, u32 w_permille)
{
	cast_wshare_set(&control->wshare, w_permille);
	cast_decay_set_size(&control->decay, control->capacity, w_permille);
}

bool cast_control_access(struct cast_control *control, u64 id, u32 block)
{
	u32 p = cast_pages_get(&control->pages, id, block);
	bool recorded;

	if (p == CAST_NO_PAGE)
		return false;
	control->accesses++;
	recorded = cast_pages_read(&control->pages, p);
	cast_wshare_access(&control->wshare, p, recorded);
	if (!cast_decay_access(&control->decay, p, recorded)) {
		control->misses++;
		cast_pages_pass(&control->pages, control->decay.sim[0].parts);
	}
	return true;
}

bool cast_control_choose(struct cast_control *control)
{
	bool decay = cast_decay_choose(&control->decay);
	bool share;

	if (decay)
		cast_wshare_set_le(&control->wshare,
				   cast_control_le(control));
	share = cast_wshare_choose(&control->wshare);
	if (share)
		cast_decay_set_size(&control->decay, control->capacity,
				    cast_control_w(control));
	return decay || share;
}

void cast_control_drop(struct cast_control *control,
		       bool (*gone)(u64 id, u64 arg), u64 arg)
{
	u32 p;

	for (p = 0; p < CAST_SAMPLE_PAGES; p++) {
		const struct cast_page *page = &control->pages.page[p];

		if (!page->id || !gone(page->id, arg))
			continue;
		cast_decay_drop(&control->decay, p);
		cast_wshare_drop(&control->wshare, p);
		cast_pages_drop(&control->pages, p);
	}
}
