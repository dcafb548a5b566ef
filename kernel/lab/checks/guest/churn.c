// SPDX-License-Identifier: GPL-2.0-only
/*
 * churn FILE MIB SECONDS SEED [ANONYMOUS_MIB]: does to a file's pages whatever takes them onto
 * and off the lists, and checks every page it reads. The file's content is known: each page
 * says which page it is and how often it was rewritten. In the end all of it is read back from
 * the disk.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"

#define RUN_PAGES 64UL		/* of one operation, at most */
#define HOT_PART 8		/* most reads are of this part of the file */

#ifndef MADV_COLD
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#endif

static int fd;
static uint64_t pages, ops;
static uint64_t anonymous = 8;	/* MiB of memory of its own, at most */
static uint32_t *generation;	/* of each page; 0: a hole */
static uint64_t buffer[RUN_PAGES * PAGE / sizeof(uint64_t)];

static void read_run(uint64_t page, uint64_t count)
{
	uint64_t i;

	if (pread(fd, buffer, count * PAGE, page * PAGE) != (ssize_t)(count * PAGE))
		fail("FAIL pread of page %" PRIu64, page);
	for (i = 0; i < count; i++)
		check_page(buffer + i * PAGE / 8, page + i, generation[page + i]);
}

static void write_run(uint64_t page, uint64_t count)
{
	uint64_t i;

	for (i = 0; i < count; i++)
		stamp(buffer + i * PAGE / 8, page + i, ++generation[page + i]);
	if (pwrite(fd, buffer, count * PAGE, page * PAGE) != (ssize_t)(count * PAGE))
		fail("FAIL pwrite of page %" PRIu64, page);
}

static void punch_run(uint64_t page, uint64_t count)
{
	if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, page * PAGE, count * PAGE))
		fail("FAIL fallocate");
	memset(generation + page, 0, count * sizeof(*generation));
}

static void map_run(uint64_t page, uint64_t count)
{
	static const int advice[] = { MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL };
	int after = draw(6);
	unsigned char *map;
	uint64_t i;

	map = mmap(NULL, count * PAGE, PROT_READ, MAP_SHARED, fd, page * PAGE);
	if (map == MAP_FAILED)
		fail("FAIL mmap");
	madvise(map, count * PAGE, advice[draw(3)]);
	for (i = 0; i < count; i++)
		check_page((uint64_t *)(map + i * PAGE), page + i,
			   generation[page + i]);
	/* A run that is locked, given up, or written out by its own process. */
	if (after == 0) {
		mlock(map, count * PAGE);
		munlock(map, count * PAGE / 2);
	} else if (after == 1) {
		madvise(map, count * PAGE, MADV_COLD);
	} else if (after == 2) {
		madvise(map, count * PAGE, MADV_PAGEOUT);
	}
	munmap(map, count * PAGE);
}

static void anonymous_run(void)
{
	unsigned char *memory;
	size_t size, at;

	if (!anonymous)
		return;
	size = (1 + draw(anonymous)) << 20;
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return;
	for (at = 0; at < size; at += PAGE)
		memory[at] = 1;
	if (draw(2))
		madvise(memory, size, MADV_FREE);
	munmap(memory, size);
}

static void advise(uint64_t page, uint64_t count)
{
	static const int advice[] = { POSIX_FADV_DONTNEED, POSIX_FADV_WILLNEED };

	posix_fadvise(fd, page * PAGE, count * PAGE, advice[draw(2)]);
}

static void one_operation(void)
{
	uint64_t range = draw(4) ? pages / HOT_PART : pages;
	uint64_t page = draw(range), count = 1 + draw(RUN_PAGES);

	if (count > pages - page)
		count = pages - page;
	switch (draw(16)) {
	case 0:
		write_run(page, count);
		break;
	case 1:
		punch_run(page, count);
		break;
	case 2: case 3: case 4:
		map_run(page, count);
		break;
	case 5:
		advise(page, count);
		break;
	case 6:
		anonymous_run();
		break;
	default:
		read_run(page, count);
	}
	ops++;
}

int main(int argc, char **argv)
{
	uint64_t page;
	double end;

	if (argc != 5 && argc != 6)
		return 2;
	pages = strtoull(argv[2], NULL, 0) * (1UL << 20) / PAGE;
	draw_seed(strtoull(argv[4], NULL, 0));
	if (argc == 6)
		anonymous = strtoull(argv[5], NULL, 0);
	generation = calloc(pages, sizeof(*generation));
	fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || !generation)
		fail("FAIL %s", argv[1]);
	for (page = 0; page < pages; page += RUN_PAGES)
		write_run(page, pages - page < RUN_PAGES ? pages - page : RUN_PAGES);
	end = now() + strtod(argv[3], NULL);
	while (now() < end && !bad)
		one_operation();

	fsync(fd);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	for (page = 0; page < pages; page += RUN_PAGES)
		read_run(page, pages - page < RUN_PAGES ? pages - page : RUN_PAGES);
	printf("CHURN operations=%" PRIu64 " pages_checked=%" PRIu64 " bad=%" PRIu64 "\n", ops,
	       checked, bad);
	return bad != 0;
}
