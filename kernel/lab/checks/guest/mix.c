// SPDX-License-Identifier: GPL-2.0-only
/*
 * mix FILE MIB RUNS SEED: writes FILE and reads runs of it, three of four from a part of 3/8,
 * the others from anywhere. Every page is checked.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common.h"

#define RUN_PAGES 16UL

static uint64_t buffer[RUN_PAGES * PAGE / 8];

int main(int argc, char **argv)
{
	uint64_t runs, run, reads, i;
	int fd;

	if (argc != 5)
		return 2;
	runs = (strtoull(argv[2], NULL, 0) << 20) / PAGE / RUN_PAGES;
	draw_seed(strtoull(argv[4], NULL, 0));
	fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0)
		fail("FAIL %s", argv[1]);
	for (run = 0; run < runs; run++) {
		for (i = 0; i < RUN_PAGES; i++)
			stamp(buffer + i * PAGE / 8, run * RUN_PAGES + i, 1);
		if (write(fd, buffer, sizeof(buffer)) != sizeof(buffer))
			fail("FAIL write");
	}
	fsync(fd);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	for (reads = strtoull(argv[3], NULL, 0); reads && !bad; reads--) {
		run = draw(draw(4) ? runs * 3 / 8 : runs);
		if (pread(fd, buffer, sizeof(buffer), run * sizeof(buffer)) != sizeof(buffer))
			fail("FAIL pread");
		for (i = 0; i < RUN_PAGES; i++)
			check_page(buffer + i * PAGE / 8, run * RUN_PAGES + i, 1);
	}
	printf("CHURN runs=%s pages_checked=%" PRIu64 " bad=%" PRIu64 "\n", argv[3], checked, bad);
	return bad != 0;
}
