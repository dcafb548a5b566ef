// SPDX-License-Identifier: GPL-2.0-only
/* balloon MIB FILE: locks so much anonymous memory, makes FILE, and holds on. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	size_t piece = 1UL << 20, size, at;
	char *memory;
	FILE *ready;

	if (argc != 3)
		return 2;
	size = strtoul(argv[1], NULL, 0) << 20;
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	for (at = 0; at < size; at += piece) {
		if (mlock(memory + at, piece)) {
			fprintf(stderr, "balloon: %zu of %s MiB locked: ", at >> 20, argv[1]);
			perror("mlock");
			return 1;
		}
	}
	ready = fopen(argv[2], "w");
	if (!ready || fclose(ready))
		return 1;
	for (;;)
		pause();
}
