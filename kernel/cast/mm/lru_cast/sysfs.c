// SPDX-License-Identifier: GPL-2.0-only
/*
 * /sys/kernel/mm/lru_cast/. Files of parts that are not built read what they
 * read when switched off, and refuse to be written, so scripts need no change.
 */
#include <linux/kobject.h>
#include <linux/lru_cast.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/swap.h>
#include <linux/sysfs.h>

#include "core/prefetch.h"
#include "policy/policy.h"
#include "switch.h"
#include "tune/tune.h"

#define ATTR_RO(_name) \
	static struct kobj_attribute _name##_attr = __ATTR_RO(_name)
#define ATTR_RW(_name) \
	static struct kobj_attribute _name##_attr = __ATTR_RW(_name)

#define SHOW(_name) \
	static ssize_t _name##_show(struct kobject *kobj, \
				    struct kobj_attribute *attr, char *buf)
#define STORE(_name) \
	static ssize_t _name##_store(struct kobject *kobj, \
				     struct kobj_attribute *attr, \
				     const char *buf, size_t len)

/* "a b", anon and file, or one number for both. */
static int parse_pair(const char *buf, u32 pair[CAST_TYPES])
{
	char rest;
	int n = sscanf(buf, "%u %u %c", &pair[0], &pair[1], &rest);

	if (n == 1)
		pair[1] = pair[0];
	return n == 1 || n == 2 ? 0 : -EINVAL;
}

SHOW(version)
{
	return sysfs_emit(buf, "%s\n", CAST_VERSION);
}
ATTR_RO(version);

SHOW(enabled)
{
	return sysfs_emit(buf, "%d\n", lru_cast_on());
}

STORE(enabled)
{
	bool on;
	int err = kstrtobool(buf, &on);

	if (!err)
		err = cast_enable(on);
	return err ?: len;
}
ATTR_RW(enabled);

/* --- the controllers --- */

SHOW(tune)
{
	return cast_tune_show(buf);
}
ATTR_RO(tune);

SHOW(decay_auto)
{
	return sysfs_emit(buf, "%d\n", cast_tune_auto());
}

STORE(decay_auto)
{
	bool on;
	int err = kstrtobool(buf, &on);

	if (err)
		return err;
	cast_tune_set_auto(on);
	return len;
}
ATTR_RW(decay_auto);

SHOW(decay)
{
	return sysfs_emit(buf, "%u %u\n", cast_le(false), cast_le(true));
}

STORE(decay)
{
	u32 le[CAST_TYPES];
	int err = parse_pair(buf, le);

	if (!err)
		err = cast_tune_set_le(le);
	return err ?: len;
}
ATTR_RW(decay);

SHOW(w_permille)
{
	return sysfs_emit(buf, "%u %u\n", cast_w_permille(false),
			  cast_w_permille(true));
}

STORE(w_permille)
{
	u32 w[CAST_TYPES];
	int err = parse_pair(buf, w);

	if (!err)
		err = cast_tune_set_w(w);
	return err ?: len;
}
ATTR_RW(w_permille);

/* --- what happens --- */

/* A node's own lruvec, or the root cgroup's on it. */
static u32 root_tick(int nid)
{
	return cast_now(mem_cgroup_lruvec(NULL, NODE_DATA(nid)));
}

SHOW(clock)
{
	ssize_t len = 0;
	int nid;

	for_each_online_node(nid) {
		struct cast_node_clock sums = cast_clock_read(nid);

		len += sysfs_emit_at(buf, len,
				     "node %d: in %llu evicted %llu tick %u\n",
				     nid, sums.in, sums.evicted,
				     root_tick(nid));
	}
	return len;
}
ATTR_RO(clock);

SHOW(sweep)
{
	return sysfs_emit(buf,
		"frames %lu words %lu candidates %lu stale %lu fallback %lu\n",
		cast_stat_read(CAST_STAT_FRAMES),
		cast_stat_read(CAST_STAT_WORDS),
		cast_stat_read(CAST_STAT_CANDIDATES),
		cast_stat_read(CAST_STAT_STALE),
		cast_stat_read(CAST_STAT_FALLBACK));
}
ATTR_RO(sweep);

/* The stock lists choose between the types: nothing is pressed by a split. */
SHOW(balance)
{
	return sysfs_emit(buf,
		"anon %lu file %lu nothing %lu both-size 0 both-split 0\n",
		cast_stat_read(CAST_STAT_TOOK_ANON),
		cast_stat_read(CAST_STAT_TOOK_FILE),
		cast_stat_read(CAST_STAT_TOOK_NONE));
}
ATTR_RO(balance);

SHOW(prefetch)
{
	return sysfs_emit(buf, "%u %u\n", READ_ONCE(cast_prefetch_far),
			  READ_ONCE(cast_prefetch_near));
}

STORE(prefetch)
{
	unsigned int far, near;
	char rest;

	if (sscanf(buf, "%u %u %c", &far, &near, &rest) != 2 ||
	    far > CAST_PREFETCH_MAX || near > CAST_PREFETCH_MAX)
		return -EINVAL;
	WRITE_ONCE(cast_prefetch_far, far);
	WRITE_ONCE(cast_prefetch_near, near);
	return len;
}
ATTR_RW(prefetch);

/* --- the clean-file floor --- */

SHOW(clean_min_ratio)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(cast_clean_min_ratio));
}

STORE(clean_min_ratio)
{
	unsigned int ratio;
	int err = kstrtouint(buf, 0, &ratio);

	if (!err && ratio > 100)
		err = -EINVAL;
	if (!err)
		WRITE_ONCE(cast_clean_min_ratio, ratio);
	return err ?: len;
}
ATTR_RW(clean_min_ratio);

SHOW(floor_held)
{
	return sysfs_emit(buf, "%lu\n", cast_stat_read(CAST_STAT_FLOOR_HELD));
}
ATTR_RO(floor_held);

/* --- parts that are not built --- */

static ssize_t off_show(struct kobject *kobj, struct kobj_attribute *attr,
			char *buf)
{
	return sysfs_emit(buf, "0\n");
}

static ssize_t off_store(struct kobject *kobj, struct kobj_attribute *attr,
			 const char *buf, size_t len)
{
	return -EOPNOTSUPP;
}

#define ATTR_OFF(_name) \
	static struct kobj_attribute _name##_attr = \
		__ATTR(_name, 0644, off_show, off_store)

ATTR_OFF(walker);
#ifdef CONFIG_X86_64
ATTR_OFF(walker_simd);
#endif
ATTR_OFF(kcompressd);

/* No wait is timed yet, so the costs are vm.swappiness's prior alone. */
SHOW(estimate)
{
	unsigned long anon = global_node_page_state(NR_ACTIVE_ANON) +
			     global_node_page_state(NR_INACTIVE_ANON);
	unsigned long file = global_node_page_state(NR_ACTIVE_FILE) +
			     global_node_page_state(NR_INACTIVE_FILE);

	return sysfs_emit(buf,
		"share %lu/1000\n"
		"swappiness %d\n"
		"cost anon 0 ns (0 waits) file 0 ns (0 waits)\n"
		"swap-out 0 ns (0 pages)\n"
		"in flight 0\n",
		anon * 1000 / max(anon + file, 1UL), vm_swappiness);
}
ATTR_RO(estimate);

static struct attribute *lru_cast_attrs[] = {
	&version_attr.attr,
	&enabled_attr.attr,
	&estimate_attr.attr,
	&tune_attr.attr,
	&decay_auto_attr.attr,
	&decay_attr.attr,
	&w_permille_attr.attr,
	&clean_min_ratio_attr.attr,
	&floor_held_attr.attr,
	&balance_attr.attr,
	&clock_attr.attr,
	&sweep_attr.attr,
	&walker_attr.attr,
#ifdef CONFIG_X86_64
	&walker_simd_attr.attr,
#endif
	&prefetch_attr.attr,
	&kcompressd_attr.attr,
	NULL
};

static const struct attribute_group lru_cast_group = {
	.name = "lru_cast",
	.attrs = lru_cast_attrs,
};

int cast_sysfs_init(void)
{
	return sysfs_create_group(mm_kobj, &lru_cast_group);
}
