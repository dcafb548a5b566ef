// SPDX-License-Identifier: GPL-2.0-only
/*
 * Switching on and off. W and M are the stock lists, so no folio moves:
 * switching on sets up the state and tells M's frames by their words,
 * switching off turns the hooks off.
 */
#define pr_fmt(fmt) "lru_cast: " fmt

#include <linux/cgroup.h>
#include <linux/cpu.h>
#include <linux/init.h>
#include <linux/lru_cast.h>
#include <linux/memcontrol.h>
#include <linux/memory_hotplug.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/string.h>

#include "../internal.h"
#include "core/prefetch.h"
#include "policy/policy.h"
#include "switch.h"
#include "tune/tune.h"

/* Folios whose words are made under one hold of lru_lock. */
#define BATCH_FOLIOS	1024U

/* A page of the active list was read twice; when, its place tells. */
#define M_CNT		2U
#define M_GAP_TICKS	4U
#define M_QUARTERS	4U

DEFINE_STATIC_KEY_FALSE(lru_cast_key);

static bool start_on __initdata = true;

static int __init lru_cast_param(char *arg)
{
	return kstrtobool(arg, &start_on);
}
early_param("lru_cast", lru_cast_param);

/* Under cgroup_lock(), which every switch of a policy takes. */
int cast_switch_allowed(void)
{
	return lru_cast_on() ? -EBUSY : 0;
}

/* --- every lruvec --- */

static struct lruvec *lruvec_at(struct mem_cgroup *memcg, int nid)
{
	struct pglist_data *pgdat = NODE_DATA(nid);

#ifdef CONFIG_MEMCG
	if (memcg) {
		struct lruvec *lruvec = &memcg->nodeinfo[nid]->lruvec;

		/* The node may have come after the cgroup. */
		if (!lruvec->pgdat)
			lruvec->pgdat = pgdat;
		return lruvec;
	}
#endif
	return pgdat ? &pgdat->__lruvec : NULL;
}

static int for_each_lruvec(int (*fn)(struct lruvec *lruvec, int nid))
{
	struct mem_cgroup *memcg = mem_cgroup_iter(NULL, NULL, NULL);
	int nid, err;

	do {
		for_each_node(nid) {
			struct lruvec *lruvec = lruvec_at(memcg, nid);

			err = lruvec ? fn(lruvec, nid) : 0;
			if (err) {
				mem_cgroup_iter_break(NULL, memcg);
				return err;
			}
		}
		cond_resched();
	} while ((memcg = mem_cgroup_iter(NULL, memcg, NULL)));
	return 0;
}

static int forget(struct lruvec *lruvec, int nid)
{
	cast_lruvec_reset(lruvec);
	return 0;
}

/* --- words for what is on the lists --- */

static void adopt_folio(struct lruvec *lruvec, struct folio *folio,
			unsigned int quarter)
{
	unsigned long pfn = folio_pfn(folio);
	bool active = folio_test_active(folio);
	u32 now = cast_now(lruvec);

	/* The hooks run already: what they have recorded is true. */
	if (!cast_word_cnt(cast_word(pfn))) {
		if (active)
			cast_word_set_history(pfn, cast_word_make(M_CNT,
					      cast_gap_class(M_GAP_TICKS), 0,
					      now - quarter, 0));
		else
			cast_word_fresh(pfn, now);
	}
	cast_added(lruvec, folio);
}

/*
 * The list turns once, tail by tail: then it is in the order it was, and what
 * is added or taken in between does no harm, nor does a folio met twice.
 */
static void adopt_list(struct lruvec *lruvec, enum lru_list lru)
{
	struct list_head *head = &lruvec->lists[lru];
	unsigned long pages, done = 0;
	unsigned int i;

	spin_lock_irq(&lruvec->lru_lock);
	pages = cast_list_pages(lruvec, lru);
	while (done < pages && !list_empty(head)) {
		for (i = 0; i < BATCH_FOLIOS && done < pages &&
			    !list_empty(head); i++) {
			struct folio *folio = lru_to_folio(head);
			unsigned int younger = M_QUARTERS * done / pages;

			adopt_folio(lruvec, folio, M_QUARTERS - 1 - younger);
			list_move(&folio->lru, head);
			done += folio_nr_pages(folio);
		}
		spin_unlock_irq(&lruvec->lru_lock);
		cond_resched();
		spin_lock_irq(&lruvec->lru_lock);
	}
	spin_unlock_irq(&lruvec->lru_lock);
}

static int adopt(struct lruvec *lruvec, int nid)
{
	/* A node that has no memory yet has no pages. */
	if (!lruvec_pgdat(lruvec))
		return 0;
	adopt_list(lruvec, LRU_ACTIVE_FILE);
	adopt_list(lruvec, LRU_INACTIVE_FILE);
	return 0;
}

/* --- the switch --- */

static int set_up(void)
{
	int err;

	err = cast_key_init();
	if (!err)
		err = cast_state_init();
	if (!err)
		err = cast_tune_start();
	if (err)
		return err;
	/* Cgroups made from now on bring their own. */
	cast_lruvecs_wanted();
	return for_each_lruvec(cast_lruvec_set_up);
}

static int switch_on(void)
{
	int err;

	if (lru_gen_enabled())
		return -EBUSY;
	err = set_up();
	if (err) {
		pr_warn("cannot be switched on: no memory for its state (%d)\n",
			err);
		return err;
	}
	cast_state_clear();
	for_each_lruvec(forget);
	static_branch_enable_cpuslocked(&lru_cast_key);
	for_each_lruvec(adopt);
	return 0;
}

static void switch_off(void)
{
	static_branch_disable_cpuslocked(&lru_cast_key);
	synchronize_rcu();
	cast_tune_stop();
	for_each_lruvec(forget);
}

int cast_enable(bool on)
{
	static DEFINE_MUTEX(state_mutex);
	int err = 0;

	/* In the order of MGLRU's switch: see lru_gen_change_state(). */
	cgroup_lock();
	cpus_read_lock();
	get_online_mems();
	mutex_lock(&state_mutex);

	if (on && !lru_cast_on())
		err = switch_on();
	else if (!on && lru_cast_on())
		switch_off();

	mutex_unlock(&state_mutex);
	put_online_mems();
	cpus_read_unlock();
	cgroup_unlock();
	return err;
}

int cast_for_each_lruvec_on(int (*fn)(struct lruvec *lruvec, int nid),
			    void *state, size_t size)
{
	int err = -ENODEV;

	cgroup_lock();
	if (lru_cast_on()) {
		memset(state, 0, size);
		err = for_each_lruvec(fn);
	}
	cgroup_unlock();
	return err;
}

static int __init lru_cast_init(void)
{
	int err;

	cast_prefetch_init();
	err = cast_sysfs_init();
	if (err)
		pr_err("no sysfs files (%d)\n", err);
	if (!start_on)
		return 0;
	lru_gen_switch_off();
	err = cast_enable(true);
	if (!err)
		pr_info("v%s, on\n", CAST_VERSION);
	return err;
}
late_initcall(lru_cast_init);
