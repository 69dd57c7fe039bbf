/*-------------------------------------------------------------------------
 *
 * measure.c
 *	  What bench/tracker needs to measure the tracker's cost; built only with
 *	  MEASURE=1.
 *
 * The switch makes the tracker pass writes on unmarked, so that a running
 * server can be compared with itself. What is written meanwhile is lost to
 * the tracker, so the history is dropped each time: still, never put such a
 * library under a backup. The extension's SQL does not have these functions;
 * the benchmark creates them.
 *
 * Marks are measured on a relation that does not exist.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <time.h>

#include "catalog/pg_tablespace_d.h"
#include "fmgr.h"
#include "map.h"
#include "miscadmin.h"

PG_FUNCTION_INFO_V1(pgstrata_measure_off);
PG_FUNCTION_INFO_V1(pgstrata_measure_marks);
PG_FUNCTION_INFO_V1(pgstrata_measure_touch);

/* Nobody has it, and no backup looks for it. */
static RelBackend
measured_relation(void)
{
	RelBackend	rel;

#if PG_VERSION_NUM >= 160000
	rel.locator.spcOid = DEFAULTTABLESPACE_OID;
	rel.locator.dbOid = MyDatabaseId;
	rel.locator.relNumber = 4000000000U;
#else
	rel.node.spcNode = DEFAULTTABLESPACE_OID;
	rel.node.dbNode = MyDatabaseId;
	rel.node.relNode = 4000000000U;
#endif
	rel.backend = -1;
	return rel;
}

/* measure_off(bool): pass writes on unmarked, or mark again. */
Datum
pgstrata_measure_off(PG_FUNCTION_ARGS)
{
	map.shared->bypass = PG_GETARG_BOOL(0);
	if (map.shared->bypass)
		history_drop("the tracker was turned off for a measurement");
	PG_RETURN_VOID();
}

/* This process's own time: the machine may have other work. */
static double
processor_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

static inline BlockNumber
random_block(uint64 *state, uint64 blocks)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return (BlockNumber) (((*state >> 32) * blocks) >> 32);
}

/*
 * measure_marks(blocks, marks): nanoseconds for a mark of a random block, as
 * a write makes it (P1), without those for choosing the block.
 */
Datum
pgstrata_measure_marks(PG_FUNCTION_ARGS)
{
	uint64		blocks = PG_GETARG_INT64(0);
	int64		marks = PG_GETARG_INT64(1);
	RelBackend	rel = measured_relation();
	uint64		state = 88172645463325252;
	volatile BlockNumber sink = 0;
	double		began = processor_ns();
	double		chosen;

	for (int64 i = 0; i < marks; i++)
		sink = random_block(&state, blocks);
	chosen = processor_ns();
	for (int64 i = 0; i < marks; i++)
	{
		BlockNumber block = random_block(&state, blocks);
		uint32		generation = map_mark(rel, MAIN_FORKNUM, block, 1);

		pg_memory_barrier();
		if (unlikely(map_generation() != generation))
			(void) map_mark(rel, MAIN_FORKNUM, block, 1);
	}
	(void) sink;
	PG_RETURN_FLOAT8((processor_ns() - chosen - (chosen - began)) / marks);
}

/* measure_touch(chunks): one block of each of so many chunks of 16 MiB is written. */
Datum
pgstrata_measure_touch(PG_FUNCTION_ARGS)
{
	int64		chunks = PG_GETARG_INT64(0);
	RelBackend	rel = measured_relation();

	for (int64 i = 0; i < chunks; i++)
		(void) map_mark(rel, MAIN_FORKNUM, i * CELLS_PER_PAGE, 1);
	PG_RETURN_VOID();
}
