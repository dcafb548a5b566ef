// SPDX-License-Identifier: GPL-2.0-only
/*
 * cgroups FILE COUNT LIVE: makes COUNT cgroups below /cg, one after the other, LIVE of them at a
 * time. In each it reads a part of FILE that is larger than the group's limit, so that the
 * group reclaims; every page is checked. What a removed group still has cached it keeps.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common.h"

#define FILE_PAGES	16384UL	/* 64 MiB */
#define PART_PAGES	256UL	/* of one group: 1 MiB */
#define HOT_PAGES	64UL	/* of those, read twice */
#define LIMIT		"640K"
#define RUN_PAGES	16UL

static int fd;
static uint64_t buffer[RUN_PAGES * PAGE / 8];

static void put(const char *path, const char *text)
{
	int file = open(path, O_WRONLY);

	if (file < 0 || write(file, text, strlen(text)) < 0)
		fail("FAIL %s", path);
	close(file);
}

static const char *path_of(uint64_t group, const char *name)
{
	static char path[64];

	snprintf(path, sizeof(path), "/cg/g%" PRIu64 "%s", group, name);
	return path;
}

static void fill_file(const char *path)
{
	uint64_t page, i;

	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0)
		fail("FAIL %s", path);
	for (page = 0; page < FILE_PAGES; page += RUN_PAGES) {
		for (i = 0; i < RUN_PAGES; i++)
			stamp(buffer + i * PAGE / 8, page + i, 1);
		if (write(fd, buffer, sizeof(buffer)) != sizeof(buffer))
			fail("FAIL write");
	}
	fsync(fd);
}

static void read_pages(uint64_t page, uint64_t count)
{
	uint64_t i, end = page + count;

	for (; page < end; page += RUN_PAGES) {
		if (pread(fd, buffer, sizeof(buffer), page * PAGE) != sizeof(buffer))
			fail("FAIL pread");
		for (i = 0; i < RUN_PAGES; i++)
			check_page(buffer + i * PAGE / 8, page + i, 1);
	}
}

static void live(uint64_t group)
{
	uint64_t part = draw(FILE_PAGES / PART_PAGES) * PART_PAGES;

	if (mkdir(path_of(group, ""), 0755))
		fail("FAIL mkdir %s", path_of(group, ""));
	put(path_of(group, "/memory.max"), LIMIT);
	put(path_of(group, "/cgroup.procs"), "0");
	/* So that its pages are this group's, and not of one before it. */
	posix_fadvise(fd, part * PAGE, PART_PAGES * PAGE, POSIX_FADV_DONTNEED);
	read_pages(part, PART_PAGES);
	read_pages(part, HOT_PAGES);
	read_pages(part, PART_PAGES);
	put("/cg/cgroup.procs", "0");
}

int main(int argc, char **argv)
{
	uint64_t count, alive, group;

	if (argc != 4)
		return 2;
	count = strtoull(argv[2], NULL, 0);
	alive = strtoull(argv[3], NULL, 0);
	draw_seed(count);
	fill_file(argv[1]);
	for (group = 0; group < count + alive && !bad; group++) {
		if (group < count)
			live(group);
		if (group >= alive && group - alive < count && rmdir(path_of(group - alive, "")))
			fail("FAIL rmdir %s", path_of(group - alive, ""));
	}
	printf("CHURN groups=%" PRIu64 " live=%" PRIu64 " pages_checked=%" PRIu64 " bad=%" PRIu64
	       "\n", count, alive, checked, bad);
	return bad != 0;
}
