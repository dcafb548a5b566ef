// SPDX-License-Identifier: GPL-2.0-only
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab.h"

uint64_t fnv_add(uint64_t hash, const void *bytes, size_t count)
{
	const unsigned char *at = bytes;

	while (count--)
		hash = (hash ^ *at++) * 0x100000001b3ULL;
	return hash;
}

static int refuse(const char *path, const char *why)
{
	fprintf(stderr, "%s: %s\n", path, why);
	return -1;
}

static unsigned char *whole_file(const char *path, size_t *size)
{
	FILE *file = fopen(path, "rb");
	unsigned char *bytes = NULL;
	long end;

	if (!file)
		goto failed;
	if (fseek(file, 0, SEEK_END) || (end = ftell(file)) < 0 || fseek(file, 0, SEEK_SET))
		goto failed;
	bytes = malloc(end + 1);
	if (!bytes || fread(bytes, 1, end, file) != (size_t)end)
		goto failed;
	fclose(file);
	*size = end;
	return bytes;
failed:
	fprintf(stderr, "%s: %s\n", path, strerror(errno));
	free(bytes);
	if (file)
		fclose(file);
	return NULL;
}

/* The numbers must be those of a list: the reader indexes with them. */
static int sound(struct list *list)
{
	uint32_t i, end = 0;

	memset(list->key_at, 0xff, list->keys * sizeof(*list->key_at));
	for (i = 0; i < list->keys; i++) {
		if (list->place[i] >= list->keys || list->key_at[list->place[i]] != UINT32_MAX)
			return 0;
		list->key_at[list->place[i]] = i;
	}
	for (i = 0; i < list->iterations; i++) {
		if (list->ends[i] < end)
			return 0;
		end = list->ends[i];
	}
	for (i = 0; i < list->accesses; i++)
		if (list->order[i] >= list->keys)
			return 0;
	return end == list->accesses && list->first_scored < list->iterations;
}

int list_load(struct list *list, const char *path)
{
	const size_t head = 8 + 4 * sizeof(uint32_t), tail = sizeof(uint64_t);
	uint64_t numbers, hash;
	unsigned char *bytes;
	size_t size;

	bytes = whole_file(path, &size);
	if (!bytes)
		return -1;
	if (size < head + tail || memcmp(bytes, "EXPACC1\n", 8))
		return refuse(path, "not an access list of version 1");
	memcpy(list, bytes + 8, 4 * sizeof(uint32_t));
	numbers = (uint64_t)list->keys + list->iterations + list->accesses;
	if (size != head + numbers * sizeof(uint32_t) + tail)
		return refuse(path, "not as long as its head says");
	memcpy(&hash, bytes + size - tail, tail);
	if (hash != fnv_add(FNV_START, bytes, size - tail))
		return refuse(path, "damaged: its checksum differs");
	list->place = (const uint32_t *)(bytes + head);
	list->ends = list->place + list->keys;
	list->order = list->ends + list->iterations;
	list->key_at = malloc((list->keys + 1) * sizeof(*list->key_at));
	if (!list->key_at || !sound(list))
		return refuse(path, "its numbers are not those of a list");
	return 0;
}
