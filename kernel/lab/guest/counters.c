// SPDX-License-Identifier: GPL-2.0-only
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "lab.h"

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

const char *const counter_name[C_COUNT] = {
	"scan", "steal", "refault_file", "activate_file", "restore_file", "fault", "majfault",
	"activate", "deactivate",
};

/* /proc/vmstat splits by who reclaims, memory.stat has sums as well: only parts are added. */
static const struct { const char *name; int counter; } parts[] = {
	{ "pgscan_kswapd", C_SCAN }, { "pgscan_direct", C_SCAN },
	{ "pgscan_khugepaged", C_SCAN },
	{ "pgsteal_kswapd", C_STEAL }, { "pgsteal_direct", C_STEAL },
	{ "pgsteal_khugepaged", C_STEAL },
	{ "workingset_refault_file", C_REFAULT }, { "workingset_activate_file", C_ACTIVATE },
	{ "workingset_restore_file", C_RESTORE }, { "pgfault", C_FAULT },
	{ "pgmajfault", C_MAJFAULT }, { "pgactivate", C_PROMOTE }, { "pgdeactivate", C_DEMOTE },
};

static int table_read(const char *path, uint64_t *counts)
{
	char line[256], name[128];
	uint64_t value;
	size_t i;
	FILE *file = fopen(path, "r");

	if (!file) {
		perror(path);
		return -1;
	}
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%127s %" SCNu64, name, &value) != 2)
			continue;
		for (i = 0; i < sizeof(parts) / sizeof(*parts); i++)
			if (!strcmp(name, parts[i].name))
				counts[parts[i].counter] += value;
	}
	fclose(file);
	return 0;
}

static int device_read(struct counters *now, const char *device)
{
	uint64_t reads, merged, sectors;
	char line[256], name[64];
	int found = -1;
	FILE *file = fopen("/proc/diskstats", "r");

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%*d %*d %63s %" SCNu64 " %" SCNu64 " %" SCNu64, name, &reads,
			   &merged, &sectors) == 4 && !strcmp(name, device)) {
			now->reads = reads;
			now->read_bytes = sectors * SECTOR;
			found = 0;
		}
	}
	if (file)
		fclose(file);
	if (found)
		fprintf(stderr, "/proc/diskstats: no device %s\n", device);
	return found;
}

double monotonic(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

int counters_read(struct counters *now, const char *device, const char *group)
{
	char path[256];

	memset(now, 0, sizeof(*now));
	now->seconds = monotonic();
	if (device_read(now, device) || table_read("/proc/vmstat", now->vm))
		return -1;
	if (!group)
		return 0;
	snprintf(path, sizeof(path), "%s/memory.stat", group);
	return table_read(path, now->group);
}

/*
 * Stock reclaim judges refaults by groups' statistics, which the kernel sums up every two
 * seconds, or when somebody reads them. Memory that turns over in hours never notices; a cell's
 * turns over in milliseconds, and what reclaim decides would be chance.
 */
void counters_flush(const char *groups)
{
	char path[256], line[4096];
	FILE *file;

	snprintf(path, sizeof(path), "%s/memory.stat", groups);
	file = fopen(path, "r");
	if (!file)
		return;
	while (fgets(line, sizeof(line), file))
		;
	fclose(file);
}

/* Pages of the whole file that the page cache holds; -1 where the kernel cannot say. */
long resident_pages(int fd)
{
	uint64_t range[2] = { 0, 0 }, stat[5] = { 0 };

	if (syscall(SYS_cachestat, fd, range, stat, 0))
		return -1;
	return stat[0];
}
