// SPDX-License-Identifier: GPL-2.0-only
/*
 * toggle FILE MS RUN: writes 0 and 1 to FILE in turn, every MS milliseconds by the clock, while
 * the file RUN is there; ends with 1. In real time and locked in memory: what goes on under
 * pressure must not wait for the pressure to end.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common.h"

static void write_switch(int fd, int on)
{
	if (pwrite(fd, on ? "1" : "0", 1, 0) != 1)
		fail("FAIL switching to %d", on);
}

int main(int argc, char **argv)
{
	struct sched_param priority = { .sched_priority = 1 };
	uint64_t ms, switched = 0, late = 0;
	struct timespec due;
	double begin, took, longest = 0;
	int fd;

	if (argc != 4)
		return 2;
	ms = strtoull(argv[2], NULL, 0);
	fd = open(argv[1], O_WRONLY);
	if (fd < 0)
		fail("FAIL %s", argv[1]);
	/* musl's own sched_setscheduler() is a stub: it is of a thread here, not of a process. */
	if (mlockall(MCL_CURRENT | MCL_FUTURE) ||
	    syscall(SYS_sched_setscheduler, 0, SCHED_FIFO, &priority))
		fail("FAIL real time");
	clock_gettime(CLOCK_MONOTONIC, &due);
	while (!access(argv[3], F_OK) || switched % 2) {
		begin = now();
		write_switch(fd, switched++ % 2);
		took = now() - begin;
		if (took > longest)
			longest = took;
		due.tv_nsec += ms * 1000000;
		due.tv_sec += due.tv_nsec / 1000000000;
		due.tv_nsec %= 1000000000;
		if (now() > due.tv_sec + due.tv_nsec * 1e-9) {
			late++;
			clock_gettime(CLOCK_MONOTONIC, &due);
			continue;
		}
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL) == EINTR)
			;
	}
	printf("NOTE switched %" PRIu64 " times, %" PRIu64 " of them late; the longest took %.1f ms\n",
	       switched, late, longest * 1e3);
	return 0;
}
