// SPDX-License-Identifier: GPL-2.0-only
/* mkpool FILE MIB: a pool whose every page says where it lies (lab.h). */
#include <stdio.h>
#include <stdlib.h>

#include "lab.h"

int main(int argc, char **argv)
{
	static uint64_t page[PAGE / sizeof(uint64_t)];
	uint64_t pages, i;
	FILE *file;

	if (argc != 3)
		return 2;
	pages = strtoull(argv[2], NULL, 0) * 256;
	file = fopen(argv[1], "wb");
	for (i = 0; file && i < pages; i++) {
		page[0] = i;
		page[PAGE / sizeof(uint64_t) - 1] = i ^ PAGE_TAIL;
		if (fwrite(page, PAGE, 1, file) != 1)
			break;
	}
	if (!file || i < pages || fclose(file)) {
		perror(argv[1]);
		return 1;
	}
	return 0;
}
