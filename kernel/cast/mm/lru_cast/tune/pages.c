// SPDX-License-Identifier: GPL-2.0-only
#include <linux/errno.h>
#include <linux/kernel.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "../core/key.h"
#include "pages.h"

#define CHAINS		CAST_SAMPLE_PAGES
/* Ghosts compared before one is forgotten. */
#define GHOSTS_SEEN	16U

int cast_pages_init(struct cast_pages *pages)
{
	pages->page = kvcalloc(CAST_SAMPLE_PAGES, sizeof(*pages->page),
			       GFP_KERNEL);
	pages->chain = kvcalloc(CHAINS, sizeof(*pages->chain), GFP_KERNEL);
	if (!pages->page || !pages->chain) {
		cast_pages_exit(pages);
		return -ENOMEM;
	}
	cast_pages_clear(pages);
	return 0;
}

void cast_pages_exit(struct cast_pages *pages)
{
	kvfree(pages->page);
	kvfree(pages->chain);
	pages->page = NULL;
	pages->chain = NULL;
}

void cast_pages_clear(struct cast_pages *pages)
{
	memset(pages->page, 0, CAST_SAMPLE_PAGES * sizeof(*pages->page));
	memset(pages->chain, 0xff, CHAINS * sizeof(*pages->chain));
	pages->used = 0;
	pages->hand = 0;
	pages->now = CAST_TICK_FIRST;
	pages->step = 1;
	pages->intake = 0;
	pages->round = 1;
	pages->taken = 0;
	pages->forgotten = 0;
}

static u16 *chain_of(struct cast_pages *pages, u64 id)
{
	return &pages->chain[cast_hash32((u32)id ^ (u32)(id >> 32)) &
			     (CHAINS - 1)];
}

static u32 find(struct cast_pages *pages, u64 id)
{
	u32 p = *chain_of(pages, id);

	while (p != CAST_NO_PAGE && pages->page[p].id != id)
		p = pages->page[p].next;
	return p;
}

void cast_pages_drop(struct cast_pages *pages, u32 p)
{
	struct cast_page *page = &pages->page[p];
	u16 *link = chain_of(pages, page->id);

	while (*link != p)
		link = &pages->page[*link].next;
	*link = page->next;
	page->id = 0;
	pages->used--;
}

/* The next entry at the hand; entries are never all looked at for nothing. */
static u32 next_entry(struct cast_pages *pages)
{
	u32 p = pages->hand;

	pages->hand = (p + 1) & (CAST_SAMPLE_PAGES - 1);
	return p;
}

static u32 find_free(struct cast_pages *pages)
{
	u32 p;

	do {
		p = next_entry(pages);
	} while (pages->page[p].id);
	return p;
}

/* Of the ghosts met next, the one that was read longest ago. */
static u32 forget_ghost(struct cast_pages *pages)
{
	u32 i, p, age, seen = 0, oldest = CAST_NO_PAGE, oldest_age = 0;

	for (i = 0; i < CAST_SAMPLE_PAGES && seen < GHOSTS_SEEN; i++) {
		p = next_entry(pages);
		if (pages->page[p].homes)
			continue;
		seen++;
		age = pages->now - pages->page[p].tick;
		if (oldest == CAST_NO_PAGE || age > oldest_age) {
			oldest = p;
			oldest_age = age;
		}
	}
	if (oldest == CAST_NO_PAGE)
		return oldest;
	if (pages->now - pages->page[oldest].left <= CAST_HISTORY_TICKS)
		pages->forgotten++;
	cast_pages_drop(pages, oldest);
	return oldest;
}

u32 cast_pages_get(struct cast_pages *pages, u64 id, u32 block)
{
	u32 p = find(pages, id);
	struct cast_page *page;
	u16 *link;

	if (p != CAST_NO_PAGE)
		return p;
	p = pages->used < CAST_SAMPLE_PAGES ? find_free(pages) :
					      forget_ghost(pages);
	if (p == CAST_NO_PAGE)
		return p;
	link = chain_of(pages, id);
	page = &pages->page[p];
	*page = (struct cast_page) {
		.id = id,
		.block = block,
		.tick = pages->now,
		.next = *link,
	};
	*link = p;
	pages->used++;
	return p;
}

bool cast_pages_read(struct cast_pages *pages, u32 p)
{
	struct cast_page *page = &pages->page[p];
	u32 gap = pages->now - page->tick;

	/* As a shadow: out of memory for longer, it comes without history. */
	if (!page->homes && page->cnt &&
	    pages->now - page->left > CAST_HISTORY_TICKS)
		page->cnt = 0;
	if (!gap && page->cnt >= 2 && !page->g1)
		return false;
	page->g2 = page->cnt >= 2 ? page->g1 : 0;
	page->g1 = page->cnt ? cast_gap_class(gap) : 0;
	page->cnt = min_t(u32, page->cnt + 1, CAST_CNT_MAX);
	page->tick = pages->now;
	return true;
}

void cast_pages_set_capacity(struct cast_pages *pages, u32 capacity)
{
	pages->step = max(1U, capacity / 4) * CAST_PARTS;
}

void cast_pages_pass(struct cast_pages *pages, u32 parts)
{
	if (++pages->taken >= pages->step / CAST_PARTS) {
		pages->taken = 0;
		pages->round++;
	}
	pages->intake += parts;
	if (pages->intake < pages->step)
		return;
	pages->intake -= pages->step;
	pages->now++;
}
