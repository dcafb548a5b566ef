// SPDX-License-Identifier: GPL-2.0-only
/*
 * The array of state words: one range of kernel addresses for every frame
 * that could ever be, backed a memory section at a time, so that a word is
 * found by its PFN alone. Set up when CAST is first switched on.
 */
#include <linux/cache.h>
#include <linux/gfp.h>
#include <linux/memblock.h>
#include <linux/memory.h>
#include <linux/memory_hotplug.h>
#include <linux/mm.h>
#include <linux/notifier.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/vmalloc.h>

#include "core.h"

#ifdef CONFIG_SPARSEMEM
#define SECTION_FRAMES	PAGES_PER_SECTION
#else
/* A user-mode kernel has no sections: parts of the same size do. */
#define SECTION_FRAMES	32768UL
#endif

#define SECTION_BYTES	(SECTION_FRAMES * sizeof(u32))
#define SECTION_PAGES	(SECTION_BYTES / PAGE_SIZE)

static_assert(SECTION_BYTES % PAGE_SIZE == 0);

u32 *cast_words __read_mostly;

static struct vm_struct *words_area;
static unsigned long words_frames;	/* frames that the range has room for */

/* --- which words are there --- */

#ifdef CONFIG_SPARSEMEM
static bool section_has_memory(unsigned long pfn)
{
	return online_section_nr(pfn_to_section_nr(pfn));
}
#else
static bool section_has_memory(unsigned long pfn)
{
	return pfn < max_pfn;
}
#endif

/*
 * Words come before their section goes online and leave a grace period after
 * it went offline, so "online" is the same as "has words".
 */
bool cast_section_present(unsigned long pfn)
{
	return pfn < words_frames && section_has_memory(pfn);
}

unsigned long cast_section_end(unsigned long pfn)
{
	return round_down(pfn, SECTION_FRAMES) + SECTION_FRAMES;
}

/* --- backing --- */

static unsigned long section_address(unsigned long pfn)
{
	return (unsigned long)(cast_words + round_down(pfn, SECTION_FRAMES));
}

static void section_unback(unsigned long pfn)
{
	unsigned long start = section_address(pfn), i;
	struct page *page;
	LIST_HEAD(pages);

	for (i = 0; i < SECTION_PAGES; i++) {
		page = vmalloc_to_page((void *)start + i * PAGE_SIZE);
		if (page)
			list_add(&page->lru, &pages);
	}
	vm_area_unmap_pages(words_area, start, start + SECTION_BYTES);
	while (!list_empty(&pages)) {
		page = list_first_entry(&pages, struct page, lru);
		list_del(&page->lru);
		__free_page(page);
	}
}

static int section_back(unsigned long pfn, int nid)
{
	unsigned long start = section_address(pfn);
	struct page **pages;
	unsigned long i;
	int err = -ENOMEM;

	if (vmalloc_to_page((void *)start))
		return 0;
	pages = kcalloc(SECTION_PAGES, sizeof(*pages), GFP_KERNEL);
	if (!pages)
		return -ENOMEM;
	for (i = 0; i < SECTION_PAGES; i++) {
		pages[i] = alloc_pages_node(nid, GFP_KERNEL | __GFP_ZERO, 0);
		if (!pages[i])
			goto free;
	}
	err = vm_area_map_pages(words_area, start, start + SECTION_BYTES,
				pages);
	if (!err)
		goto out;
free:
	while (i--)
		__free_page(pages[i]);
out:
	kfree(pages);
	return err;
}

static void range_unback(unsigned long pfn, unsigned long end)
{
	for (; pfn < end; pfn += SECTION_FRAMES)
		section_unback(pfn);
}

static int range_back(unsigned long start, unsigned long end, int nid)
{
	unsigned long pfn;
	int err;

	for (pfn = start; pfn < end; pfn += SECTION_FRAMES) {
		err = section_back(pfn, nid);
		if (err) {
			range_unback(start, pfn);
			return err;
		}
	}
	return 0;
}

/* --- hot-plug --- */

static int memory_changes(struct notifier_block *self, unsigned long action,
			  void *arg)
{
	struct memory_notify *change = arg;
	unsigned long start = round_down(change->start_pfn, SECTION_FRAMES);
	unsigned long end = round_up(change->start_pfn + change->nr_pages,
				     SECTION_FRAMES);
	int err;

	switch (action) {
	case MEM_GOING_ONLINE:
		if (end > words_frames) {
			pr_warn("lru_cast: no words for frames to %#lx, the array ends at %#lx\n",
				end, words_frames);
			return notifier_from_errno(-ERANGE);
		}
		err = range_back(start, end, pfn_to_nid(change->start_pfn));
		return notifier_from_errno(err);
	case MEM_CANCEL_ONLINE:
	case MEM_OFFLINE:
		if (end > words_frames)
			break;
		/* Sweeps may still be reading them. */
		synchronize_rcu();
		range_unback(start, end);
		break;
	}
	return NOTIFY_OK;
}

static struct notifier_block memory_notifier = {
	.notifier_call = memory_changes,
};

/* --- setting up --- */

/*
 * As many frames as the machine can have, if addresses for them are cheap;
 * otherwise what the firmware announced. KASAN backs addresses by memory.
 */
static unsigned long frames_to_reserve(void)
{
	unsigned long announced = max_t(unsigned long, max_possible_pfn,
					max_pfn);

#if defined(MAX_PHYSMEM_BITS) && !defined(CONFIG_KASAN_VMALLOC)
	unsigned long all = 1UL << (MAX_PHYSMEM_BITS - PAGE_SHIFT);

	if (all * sizeof(u32) <= VMALLOC_TOTAL / 8)
		announced = all;
#endif
	return round_up(announced, SECTION_FRAMES);
}

static unsigned long highest_section_end(void)
{
	return round_up(max_pfn, SECTION_FRAMES);
}

static int back_what_is_online(void)
{
	unsigned long pfn, end = highest_section_end();
	int err;

	for (pfn = 0; pfn < end; pfn += SECTION_FRAMES) {
		if (!section_has_memory(pfn))
			continue;
		err = section_back(pfn, pfn_to_nid(pfn));
		if (err) {
			range_unback(0, pfn);
			return err;
		}
	}
	return 0;
}

/* The caller holds memory hot-plug off (get_online_mems()). */
int cast_state_init(void)
{
	int err;

	if (words_area)
		return 0;
	words_frames = frames_to_reserve();
	words_area = get_vm_area(words_frames * sizeof(u32), VM_SPARSE);
	if (!words_area) {
		pr_warn("lru_cast: no addresses for the words of %lu frames\n",
			words_frames);
		return -ENOMEM;
	}
	cast_words = words_area->addr;
	err = back_what_is_online();
	if (!err)
		err = register_memory_notifier(&memory_notifier);
	if (err) {
		range_unback(0, highest_section_end());
		free_vm_area(words_area);
		words_area = NULL;
		cast_words = NULL;
		return err;
	}
	return 0;
}

/* The caller holds memory hot-plug off. */
void cast_state_clear(void)
{
	unsigned long pfn, end = highest_section_end();

	for (pfn = 0; pfn < end; pfn += SECTION_FRAMES) {
		if (section_has_memory(pfn))
			memset((void *)section_address(pfn), 0, SECTION_BYTES);
		cond_resched();
	}
}

/* --- changing words --- */

static u32 after(u32 word, u32 now, bool arrived)
{
	return arrived ? cast_word_after_arrival(word, now) :
			 cast_word_after_read(word, now);
}

/*
 * A read is lost only to another writer, twice in a row: of the same page at
 * the same moment, which has recorded the same read.
 */
bool cast_word_note_read(unsigned long pfn, u32 now, bool arrived)
{
	u32 *word = &cast_words[pfn];
	u32 old = READ_ONCE(*word);
	u32 new = after(old, now, arrived);

	if (new == old)
		return false;
	if (try_cmpxchg_relaxed(word, &old, new))
		return true;
	new = after(old, now, arrived);
	return new != old && try_cmpxchg_relaxed(word, &old, new);
}

void cast_word_set_history(unsigned long pfn, u32 from)
{
	u32 *word = &cast_words[pfn];
	u32 old = READ_ONCE(*word);

	while (!try_cmpxchg_relaxed(word, &old,
				    cast_word_with_history(old, from)))
		;
}

void cast_word_fresh(unsigned long pfn, u32 now)
{
	cast_word_set_history(pfn, cast_word_as_fresh(0, now));
}

void cast_word_cold(unsigned long pfn, u32 now)
{
	cast_word_set_history(pfn, cast_word_as_cold(0, now));
}

void cast_word_set_owner(unsigned long pfn, u32 tag)
{
	u32 *word = &cast_words[pfn];
	u32 old = READ_ONCE(*word);

	while (!try_cmpxchg_relaxed(word, &old, cast_word_with_tag(old, tag)))
		;
}

void cast_word_forget(unsigned long pfn)
{
	WRITE_ONCE(cast_words[pfn], 0);
}

u32 cast_word_normalise(unsigned long pfn, u32 now, u32 le)
{
	u32 *word = &cast_words[pfn];
	u32 old = READ_ONCE(*word);
	u32 new;

	do {
		new = cast_word_aged(old, now, le);
		if (new == old)
			return old;
	} while (!try_cmpxchg_relaxed(word, &old, new));
	return new;
}
