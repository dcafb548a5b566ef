// SPDX-License-Identifier: GPL-2.0-only
/*
 * large FILE MIB SECONDS SEED: folios of 2 MiB, of memory of its own and of a file that nobody
 * writes, made (MADV_COLLAPSE, faults) and taken apart (partly given back, written out, locked
 * in part, unmapped in part), and moved between nodes where there are two. Every page that it
 * reads is checked.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common.h"

#ifndef MADV_COLD
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define HUGE_SIZE	(2UL << 20)
#define HUGE_PAGES	(HUGE_SIZE / PAGE)
#define RUN_PAGES	64UL

/* A range of memory, its pages numbered from 0. */
struct range {
	unsigned char *at;
	uint64_t pages;
	uint32_t *generation;	/* of each page; 0: zeros */
	int fd;			/* -1: of its own */
};

static uint64_t collapsed, moved;

static unsigned char *map_aligned(size_t size, int prot, int flags, int fd)
{
	unsigned char *at = mmap(NULL, size + HUGE_SIZE, PROT_NONE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		fail("FAIL mmap");
	at = (unsigned char *)(((uintptr_t)at + HUGE_SIZE - 1) & ~(HUGE_SIZE - 1));
	if (mmap(at, size, prot, flags | MAP_FIXED, fd, 0) == MAP_FAILED)
		fail("FAIL mmap of %zu", size);
	return at;
}

static uint64_t *page_at(struct range *range, uint64_t page)
{
	return (uint64_t *)(range->at + page * PAGE);
}

static void write_pages(struct range *range, uint64_t page, uint64_t count)
{
	for (; count; count--, page++)
		stamp(page_at(range, page), page, ++range->generation[page]);
}

static void read_pages(struct range *range, uint64_t page, uint64_t count)
{
	for (; count; count--, page++)
		check_page(page_at(range, page), page, range->generation[page]);
}

static void make_file(const char *path, struct range *range)
{
	uint64_t page, buffer[PAGE / 8] = { 0 };
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	if (fd < 0)
		fail("FAIL %s", path);
	for (page = 0; page < range->pages; page++) {
		stamp(buffer, page, ++range->generation[page]);
		if (write(fd, buffer, PAGE) != (ssize_t)PAGE)
			fail("FAIL write %s", path);
	}
	fsync(fd);
	close(fd);
	range->fd = open(path, O_RDONLY);
	if (range->fd < 0)
		fail("FAIL %s", path);
}

/* What has no large folios to give, or no memory for one now, is no failure. */
static void collapse(struct range *range, uint64_t page)
{
	page -= page % HUGE_PAGES;
	if (!madvise(page_at(range, page), HUGE_SIZE, MADV_COLLAPSE))
		collapsed++;
	else if (errno != EINVAL && errno != ENOMEM && errno != EAGAIN && errno != EBUSY)
		fail("FAIL MADV_COLLAPSE");
}

/* All of this process's pages, from one node to the other. */
static void move_nodes(void)
{
	unsigned long node = draw(2), from = 1UL << node, to = 1UL << !node;

	if (syscall(SYS_migrate_pages, 0, 64UL, &from, &to) >= 0)
		moved++;
}

/* Unmapped in part: of its own it is gone, of a file it is mapped again. */
static void unmap(struct range *range, uint64_t page, uint64_t count)
{
	int prot = range->fd < 0 ? PROT_READ | PROT_WRITE : PROT_READ | PROT_EXEC;
	int flags = range->fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;

	munmap(page_at(range, page), count * PAGE);
	if (mmap(page_at(range, page), count * PAGE, prot, flags | MAP_FIXED, range->fd,
		 range->fd < 0 ? 0 : page * PAGE) == MAP_FAILED)
		fail("FAIL mmap of %" PRIu64 " pages", count);
	if (range->fd < 0) {
		madvise(page_at(range, page), count * PAGE, MADV_HUGEPAGE);
		memset(range->generation + page, 0, count * sizeof(*range->generation));
	}
}

static void one_operation(struct range *range)
{
	uint64_t page = draw(range->pages), count = 1 + draw(RUN_PAGES);
	unsigned char *at = (unsigned char *)page_at(range, page);

	if (count > range->pages - page)
		count = range->pages - page;
	switch (draw(16)) {
	case 0:
		collapse(range, page);
		break;
	case 1:
		madvise(at, count * PAGE, MADV_PAGEOUT);
		break;
	case 2:
		madvise(at, count * PAGE, MADV_COLD);
		break;
	case 3:
		unmap(range, page, count);
		break;
	case 4:
		mlock(at, count * PAGE);
		munlock(at, count * PAGE);
		break;
	case 5:
		if (draw(8) == 0)
			move_nodes();
		break;
	case 6: case 7: case 8:
		if (range->fd < 0)
			write_pages(range, page, count);
		break;
	default:
		read_pages(range, page, count);
	}
}

int main(int argc, char **argv)
{
	struct range own = { .fd = -1 }, file = { .fd = -1 };
	double end;

	if (argc != 5)
		return 2;
	own.pages = file.pages = strtoull(argv[2], NULL, 0) * (1UL << 20) / PAGE;
	draw_seed(strtoull(argv[4], NULL, 0));
	own.generation = calloc(own.pages, sizeof(uint32_t));
	file.generation = calloc(file.pages, sizeof(uint32_t));
	if (!own.generation || !file.generation)
		fail("FAIL calloc");
	make_file(argv[1], &file);
	own.at = map_aligned(own.pages * PAGE, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, -1);
	file.at = map_aligned(file.pages * PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, file.fd);
	madvise(own.at, own.pages * PAGE, MADV_HUGEPAGE);
	madvise(file.at, file.pages * PAGE, MADV_HUGEPAGE);
	write_pages(&own, 0, own.pages);
	end = now() + strtod(argv[3], NULL);
	while (now() < end && !bad)
		one_operation(draw(2) ? &own : &file);
	read_pages(&own, 0, own.pages);
	read_pages(&file, 0, file.pages);
	printf("CHURN collapsed=%" PRIu64 " moved=%" PRIu64 " pages_checked=%" PRIu64 " bad=%" PRIu64
	       "\n", collapsed, moved, checked, bad);
	return bad != 0;
}
