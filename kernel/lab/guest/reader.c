// SPDX-License-Identifier: GPL-2.0-only
/*
 * reader: reads a pool in the order of an access list through one read channel, checks every
 * page, and prints what the device, reclaim and the page cache did meanwhile as one line
 * "RESULT {json}".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lab.h"

/* One WILLNEED call is cut to the read-ahead window, so advice is given in such pieces. */
#define ADVICE (128UL << 10)
/* Residency is the mean of so many looks at the scored part. */
#define LOOKS 32

/* Groups' statistics are summed up every so many accesses: see counters_flush(). */
#define FLUSH_EVERY 64

enum channel { PREAD, MAPPED, ADVISED };

struct reader {
	struct list list;
	const char *device, *group, *groups, *path;
	size_t expert;
	enum channel channel;
	int fd;
	unsigned char *map, *buffer;
	uint64_t order, bad_pages, pages;
	double resident_sum;
	unsigned int looks;
};

static void check(struct reader *r, const unsigned char *bytes, uint64_t offset)
{
	uint64_t words = PAGE / sizeof(uint64_t), first = 0, at;
	const volatile uint64_t *page;

	for (at = 0; at < r->expert; at += PAGE) {
		page = (const volatile uint64_t *)(bytes + at);
		if (!at)
			first = page[0];
		if (page[0] != (offset + at) / PAGE ||
		    page[words - 1] != (page[0] ^ PAGE_TAIL))
			r->bad_pages++;
		r->pages++;
	}
	/* The order as the bytes tell it, not as we meant it. */
	at = first * PAGE / r->expert;
	at = at < r->list.keys ? r->list.key_at[at] : UINT32_MAX;
	r->order = fnv_add(r->order, &(uint32_t){ at }, sizeof(uint32_t));
}

static int read_expert(struct reader *r, uint64_t offset)
{
	size_t got;
	ssize_t n;

	if (r->channel == PREAD) {
		for (got = 0; got < r->expert; got += n) {
			n = pread(r->fd, r->buffer + got, r->expert - got, offset + got);
			if (n <= 0) {
				perror("pread");
				return -1;
			}
		}
		check(r, r->buffer, offset);
		return 0;
	}
	if (r->channel == ADVISED)
		for (got = 0; got < r->expert; got += ADVICE)
			madvise(r->map + offset + got,
				r->expert - got < ADVICE ? r->expert - got : ADVICE,
				MADV_WILLNEED);
	check(r, r->map + offset, offset);
	return 0;
}

static int replay(struct reader *r, struct counters *from)
{
	const struct list *list = &r->list;
	uint32_t first = list->first_scored ? list->ends[list->first_scored - 1] : 0;
	uint32_t every = (list->accesses - first) / LOOKS + 1, i;

	for (i = 0; i < list->accesses; i++) {
		if (i == first && counters_read(from, r->device, r->group))
			return -1;
		if (read_expert(r, (uint64_t)list->place[list->order[i]] * r->expert))
			return -1;
		if (r->groups && i % FLUSH_EVERY == 0)
			counters_flush(r->groups);
		if (i >= first && (i - first) % every == every / 2) {
			r->resident_sum += resident_pages(r->fd);
			r->looks++;
		}
	}
	return 0;
}

static void report(const struct reader *r, const struct counters *from,
		   const struct counters *to)
{
	int i;

	printf("RESULT {\"order\":\"%016" PRIx64 "\",\"bad_pages\":%" PRIu64
	       ",\"pages\":%" PRIu64 ",\"device_bytes\":%" PRIu64 ",\"device_reads\":%" PRIu64
	       ",\"resident_bytes\":%.0f,\"resident_end_bytes\":%.0f,\"seconds\":%.4f",
	       r->order, r->bad_pages, r->pages, to->read_bytes - from->read_bytes,
	       to->reads - from->reads, r->looks ? r->resident_sum / r->looks * PAGE : -1.0,
	       (double)resident_pages(r->fd) * PAGE, to->seconds - from->seconds);
	for (i = 0; i < C_COUNT; i++)
		printf(",\"%s\":%" PRIu64, counter_name[i], to->vm[i] - from->vm[i]);
	for (i = 0; r->group && i < C_COUNT; i++)
		printf(",\"group_%s\":%" PRIu64, counter_name[i], to->group[i] - from->group[i]);
	printf("}\n");
	fflush(stdout);
}

static int set_up(struct reader *r)
{
	size_t size = r->list.keys * r->expert;

	r->fd = open(r->path, O_RDONLY);
	if (r->fd < 0 || (size_t)lseek(r->fd, 0, SEEK_END) < size) {
		fprintf(stderr, "%s: cannot be read, or below %zu bytes\n", r->path, size);
		return -1;
	}
	if (r->channel == PREAD) {
		/* Asked for in whole experts already: a guess about more is never right. */
		posix_fadvise(r->fd, 0, 0, POSIX_FADV_RANDOM);
		r->buffer = aligned_alloc(PAGE, r->expert);
		if (!r->buffer)
			return -1;
		memset(r->buffer, 0, r->expert);
		return 0;
	}
	r->map = mmap(NULL, size, PROT_READ, MAP_SHARED, r->fd, 0);
	if (r->map == MAP_FAILED) {
		perror("mmap");
		return -1;
	}
	return 0;
}

/*
 * Every page of the list's keys from memory, so many times: what a warm page costs. A page
 * that is mapped costs the kernel nothing, so a pass through a mapping begins and ends it.
 */
static int warm(struct reader *r, unsigned int times)
{
	size_t size = r->list.keys * r->expert;
	uint32_t i;

	while (times--) {
		for (i = 0; i < r->list.keys; i++)
			if (read_expert(r, (uint64_t)i * r->expert))
				return -1;
		if (r->channel == PREAD)
			continue;
		munmap(r->map, size);
		r->map = mmap(NULL, size, PROT_READ, MAP_SHARED, r->fd, 0);
		if (r->map == MAP_FAILED) {
			perror("mmap");
			return -1;
		}
	}
	return 0;
}

static int usage(void)
{
	fprintf(stderr, "usage: reader -f POOL -l LIST -S EXPERT_BYTES -m pread|mapped|advised "
		"-d DEVICE [-g GROUP_DIR] [-G ALL_GROUPS_DIR] [-w TIMES (from memory)] [-n (order only)]\n");
	return 2;
}

/* The order without reading anything: what a test compares with the list's maker. */
static int order_only(struct reader *r)
{
	r->order = fnv_add(r->order, r->list.order, r->list.accesses * sizeof(uint32_t));
	printf("%016" PRIx64 "\n", r->order);
	return 0;
}

int main(int argc, char **argv)
{
	struct reader r = { .order = FNV_START, .device = "", .expert = PAGE };
	struct counters from, to;
	unsigned int times = 0, n = 0;
	const char *list = NULL;
	int option;

	while ((option = getopt(argc, argv, "f:l:S:m:d:g:G:w:n")) > 0) {
		switch (option) {
		case 'f': r.path = optarg; break;
		case 'l': list = optarg; break;
		case 'S': r.expert = strtoul(optarg, NULL, 0); break;
		case 'm': r.channel = !strcmp(optarg, "mapped") ? MAPPED :
				      !strcmp(optarg, "advised") ? ADVISED : PREAD; break;
		case 'd': r.device = optarg; break;
		case 'g': r.group = optarg; break;
		case 'G': r.groups = optarg; break;
		case 'w': times = strtoul(optarg, NULL, 0); break;
		case 'n': n = 1; break;
		default: return usage();
		}
	}
	if (!list || r.expert < PAGE || r.expert % PAGE || (!n && !r.path))
		return usage();
	if (list_load(&r.list, list))
		return 1;
	if (n)
		return order_only(&r);
	if (set_up(&r))
		return 1;
	/* A page has found its place by its third read under every policy; then it is warm. */
	if (times ? warm(&r, 3) || counters_read(&from, r.device, r.group) || warm(&r, times)
		  : replay(&r, &from))
		return 1;
	if (counters_read(&to, r.device, r.group))
		return 1;
	report(&r, &from, &to);
	return r.bad_pages ? 3 : 0;
}
