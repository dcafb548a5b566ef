/* SPDX-License-Identifier: GPL-2.0-only */
/* What the programs of the guest share: access lists, counters, the pool's pattern. */
#ifndef LAB_H
#define LAB_H

#include <stddef.h>
#include <stdint.h>

#define PAGE 4096UL
#define SECTOR 512UL
/* Folded into the last word of a page, so that a page of one number is no page of ours. */
#define PAGE_TAIL 0x9e3779b97f4a7c15ULL

/*
 * An access list as Accesses::write_list of crates/router-trace documents it. key_at is the
 * inverse of the placement: what is read tells the key by where it says that it lies.
 */
struct list {
	uint32_t keys, iterations, accesses, first_scored;
	const uint32_t *place, *ends, *order;
	uint32_t *key_at;
};

int list_load(struct list *list, const char *path);
uint64_t fnv_add(uint64_t hash, const void *bytes, size_t count);
#define FNV_START 0xcbf29ce484222325ULL

enum {
	C_SCAN, C_STEAL, C_REFAULT, C_ACTIVATE, C_RESTORE, C_FAULT, C_MAJFAULT, C_PROMOTE,
	C_DEMOTE, C_COUNT
};

struct counters {
	uint64_t read_bytes;		/* of the device, /proc/diskstats */
	uint64_t reads;
	uint64_t vm[C_COUNT];		/* of the whole guest, pages */
	uint64_t group[C_COUNT];	/* memory.stat, where there is a group */
	double seconds;
};

extern const char *const counter_name[C_COUNT];
int counters_read(struct counters *now, const char *device, const char *group);
void counters_flush(const char *groups);
long resident_pages(int fd);
double monotonic(void);

#endif
