/*-------------------------------------------------------------------------
 *
 * ptrack.c
 *	  What tools that were written for ptrack 2.4 ask a server, pg_probackup
 *	  above all: a setting, and the functions of an extension "ptrack".
 *
 * They ask by LSN. Changes since an LSN are those since the newest token made
 * at or before it, or since the history began: so each question makes a token,
 * for the next to be answered tightly. docs/TRACKER.md says how to set it up.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "functions.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/pg_lsn.h"
#include "utils/tuplestore.h"

/* ptrack's own limit, in MB: what people have in their configuration is accepted */
#define MAX_PTRACK_MAP_SIZE	(32 * 1024)

PG_FUNCTION_INFO_V1(pgstrata_ptrack_init_lsn);
PG_FUNCTION_INFO_V1(pgstrata_ptrack_get_pagemapset);

/* What the configuration has; nothing is done with it. */
static int	configured_map_size;

/* What tools want to know: 0 if changes are not tracked. */
static const char *
show_map_size(void)
{
	static char text[16];

	if (lifecycle_refusal() != NULL && !lifecycle_is_starting())
		return "0";
	snprintf(text, sizeof(text), "%dMB", pgstrata_map_size);
	return text;
}

/* A server with ptrack itself has these settings from there. */
void
ptrack_define_settings(void)
{
	if (strstr(shared_preload_libraries_string, "ptrack") != NULL)
		return;
	DefineCustomIntVariable("ptrack.map_size",
							"Tells tools written for ptrack whether changes are tracked.",
							"It has no effect: pgstrata.map_size is the capacity of the map.",
							&configured_map_size, 0, 0, MAX_PTRACK_MAP_SIZE,
							PGC_POSTMASTER, GUC_UNIT_MB | GUC_NOT_IN_SAMPLE, NULL, NULL,
							show_map_size);
}

static uint32
require_lsn(XLogRecPtr lsn)
{
	uint32		generation;

	functions_require_tracking();
	if (!history_find_lsn(lsn, &generation))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("changed blocks are not known from %X/%X", LSN_FORMAT_ARGS(lsn)),
				 errhint("Take a full backup.")));
	return generation;
}

/* 0/0 is what ptrack says when it is off. */
Datum
pgstrata_ptrack_init_lsn(PG_FUNCTION_ARGS)
{
	const char *why = lifecycle_refusal();
	XLogRecPtr	lsn;

	if (why != NULL && !lifecycle_is_starting())
	{
		ereport(WARNING, (errmsg("changes are not tracked: %s", why)));
		PG_RETURN_LSN(InvalidXLogRecPtr);
	}
	functions_require_tracking();
	(void) history_bump(TOKEN_QUESTION);
	LWLockAcquire(map.lock, LW_SHARED);
	lsn = map.header->since_lsn;
	LWLockRelease(map.lock);
	PG_RETURN_LSN(lsn);
}

typedef struct PageMapSet
{
	uint32		since;
	ReturnSetInfo *result;
	ReportRow	row;
} PageMapSet;

static void
put_page_map(const RelationFile *file, void *context)
{
	PageMapSet *set = context;
	Datum		values[3];
	bool		nulls[3] = {false, false, false};

	report_file(file, set->since, &set->row);
	if (set->row.block_count == 0)
		return;
	values[0] = CStringGetTextDatum(set->row.path);
	values[1] = Int64GetDatum(set->row.block_count);
	values[2] = PointerGetDatum(functions_bitmap_of(&set->row));
	tuplestore_putvalues(set->result->setResult, set->result->setDesc, values, nulls);
	pfree(DatumGetPointer(values[0]));
	pfree(DatumGetPointer(values[2]));
}

Datum
pgstrata_ptrack_get_pagemapset(PG_FUNCTION_ARGS)
{
	XLogRecPtr	lsn = PG_GETARG_LSN(0);
	PageMapSet	set = {require_lsn(lsn), (ReturnSetInfo *) fcinfo->resultinfo};

	(void) functions_row_type(fcinfo, 3);
	InitMaterializedSRF(fcinfo, 0);
	report_visit_files(put_page_map, &set);
	functions_require_same(set.since, require_lsn(lsn));
	(void) history_bump(TOKEN_QUESTION);
	return (Datum) 0;
}
