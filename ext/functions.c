/*-------------------------------------------------------------------------
 *
 * functions.c
 *	  The SQL functions.
 *
 * What they mean is in docs/TRACKER.md and in the comments that the SQL files
 * put on them. Functions that tell what changed raise an error when that is
 * not known; none of them guesses.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "functions.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/varlena.h"

/* A server that has just started is given this long to prove itself. */
#define START_PATIENCE_MS	10000

PG_FUNCTION_INFO_V1(pgstrata_version);
PG_FUNCTION_INFO_V1(pgstrata_state);
PG_FUNCTION_INFO_V1(pgstrata_bump);
PG_FUNCTION_INFO_V1(pgstrata_token_status);
PG_FUNCTION_INFO_V1(pgstrata_changes);
PG_FUNCTION_INFO_V1(pgstrata_change_stat);
PG_FUNCTION_INFO_V1(pgstrata_changed_files);
PG_FUNCTION_INFO_V1(pgstrata_tokens);
PG_FUNCTION_INFO_V1(pgstrata_drop_token);
PG_FUNCTION_INFO_V1(pgstrata_reset);

/* Raise an error unless the tracker can be trusted. */
void
functions_require_tracking(void)
{
	const char *why = lifecycle_refusal();

	for (int waited = 0; why != NULL && lifecycle_is_starting() && waited < START_PATIENCE_MS; waited += 10)
	{
		CHECK_FOR_INTERRUPTS();
		pg_usleep(10000L);
		why = lifecycle_refusal();
	}
	if (why != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("changes are not tracked: %s", why),
				 errhint("Compare pages instead.")));
}

/* The token that a function was given: no token must not mean no changes. */
static char *
token_argument(FunctionCallInfo fcinfo)
{
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("token must not be null")));
	return text_to_cstring(PG_GETARG_TEXT_PP(0));
}

static uint32
require_token(const char *token)
{
	uint32		generation;
	char	   *why;

	functions_require_tracking();
	if (!history_find(token, &generation, &why))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("changed blocks are not known since token \"%s\": %s", token, why),
				 errhint("Compare pages instead.")));
	return generation;
}

/*
 * At the end of an answer: a renumbering of generations in its middle, or
 * lost room, would have made it wrong.
 */
void
functions_require_same(uint32 before, uint32 now)
{
	functions_require_tracking();
	if (before != now)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("generations were renumbered while changed blocks were read"),
				 errhint("Ask again.")));
}

/* The row type that the function was declared with, by whatever version. */
TupleDesc
functions_row_type(FunctionCallInfo fcinfo, int columns)
{
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	if (desc->natts != columns)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this function of pgstrata was made for another version of the library, which is %s",
						PGSTRATA_VERSION),
				 errhint("Restart the server if the library was replaced, then run ALTER EXTENSION ... UPDATE.")));
	return BlessTupleDesc(desc);
}

static HeapTuple
form_row(FunctionCallInfo fcinfo, int columns, Datum *values, bool *nulls)
{
	return heap_form_tuple(functions_row_type(fcinfo, columns), values, nulls);
}

Datum
pgstrata_version(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(PGSTRATA_VERSION));
}

Datum
pgstrata_state(PG_FUNCTION_ARGS)
{
	Datum		values[18] = {0};
	bool		nulls[18];
	const char *why = lifecycle_refusal();
	int			i = 0;

	memset(nulls, true, sizeof(nulls));
#define PUT(value) (values[i] = (value), nulls[i] = false, i++)
	PUT(BoolGetDatum(why == NULL));
	if (why != NULL)
		PUT(CStringGetTextDatum(why));
	else
		i++;
	if (map.shared != NULL && map.lock != NULL)
	{
		MapShared  *shared = map.shared;

		LWLockAcquire(map.lock, LW_SHARED);
		PUT(TimestampTzGetDatum(map.header->since));
		PUT(LSNGetDatum(map.header->since_lsn));
		PUT(CStringGetTextDatum(map.header->since_why));
		PUT(Int32GetDatum(map_generation()));
		PUT(Int32GetDatum(map.header->token_count));
		PUT(Int64GetDatum((int64) map.arena_pages * MAP_PAGE));
		PUT(Int64GetDatum((int64) (shared->pages_used - shared->free_count) * MAP_PAGE));
		PUT(Int64GetDatum(shared->entries));
		PUT(BoolGetDatum(shared->overflow));
		PUT(Int64GetDatum(shared->flushes));
		PUT(Int64GetDatum(shared->flushed_pages));
		PUT(Float8GetDatum(shared->flush_us_last / 1000.0));
		PUT(Float8GetDatum(shared->flush_us_max / 1000.0));
		PUT(Float8GetDatum(shared->flush_us_total / 1000.0));
		PUT(Int64GetDatum(shared->flush_failures));
		if (shared->flushed_at != 0)
			PUT(TimestampTzGetDatum(shared->flushed_at));
		LWLockRelease(map.lock);
	}
#undef PUT
	PG_RETURN_DATUM(HeapTupleGetDatum(form_row(fcinfo, lengthof(values), values, nulls)));
}

Datum
pgstrata_bump(PG_FUNCTION_ARGS)
{
	MapToken	token;

	functions_require_tracking();
	token = history_bump(TOKEN_BACKUP);

	/* or a crash would make it unknown before the next checkpoint */
	(void) mapfile_flush(InvalidXLogRecPtr);
	PG_RETURN_TEXT_P(cstring_to_text(history_token_text(&token)));
}

Datum
pgstrata_token_status(PG_FUNCTION_ARGS)
{
	char	   *token = token_argument(fcinfo);
	const char *refusal = lifecycle_refusal();
	char	   *why = NULL;
	uint32		generation;
	Datum		values[2];
	bool		nulls[2] = {false, false};

	/* also while it refuses: that the history was reset must not be hidden by that */
	if (map.shared != NULL && map.lock != NULL)
		(void) history_find(token, &generation, &why);
	if (refusal != NULL && why != NULL)
		why = psprintf("changes are not tracked: %s; %s", refusal, why);
	else if (refusal != NULL)
		why = psprintf("changes are not tracked: %s", refusal);
	values[0] = BoolGetDatum(why == NULL);
	nulls[1] = why == NULL;
	values[1] = nulls[1] ? (Datum) 0 : CStringGetTextDatum(why);
	PG_RETURN_DATUM(HeapTupleGetDatum(form_row(fcinfo, lengthof(values), values, nulls)));
}

bytea *
functions_bitmap_of(const ReportRow *row)
{
	bytea	   *result = palloc(VARHDRSZ + row->bitmap_bytes);

	SET_VARSIZE(result, VARHDRSZ + row->bitmap_bytes);
	memcpy(VARDATA(result), row->bitmap, row->bitmap_bytes);
	return result;
}

typedef struct ChangesState
{
	char	   *token;
	uint32		since;
	Report	   *report;
	ReportRow	row;
} ChangesState;

static Datum
changes_row(FuncCallContext *call, const ReportRow *row)
{
	Datum		values[5] = {0};
	bool		nulls[5];

	nulls[0] = row->path[0] == '\0';
	nulls[1] = row->fork == InvalidForkNumber;
	nulls[2] = nulls[4] = row->whole;
	nulls[3] = false;
	if (!nulls[0])
		values[0] = CStringGetTextDatum(row->path);
	if (!nulls[1])
		values[1] = CStringGetTextDatum(forkNames[row->fork]);
	values[2] = Int32GetDatum(row->segment);
	values[3] = BoolGetDatum(row->whole);
	if (!nulls[4])
		values[4] = PointerGetDatum(functions_bitmap_of(row));
	return HeapTupleGetDatum(heap_form_tuple(call->tuple_desc, values, nulls));
}

Datum
pgstrata_changes(PG_FUNCTION_ARGS)
{
	FuncCallContext *call;
	ChangesState *state;

	if (SRF_IS_FIRSTCALL())
	{
		MemoryContext old;

		call = SRF_FIRSTCALL_INIT();
		old = MemoryContextSwitchTo(call->multi_call_memory_ctx);
		call->tuple_desc = functions_row_type(fcinfo, 5);
		state = palloc0(sizeof(ChangesState));
		state->token = token_argument(fcinfo);
		state->since = require_token(state->token);
		state->report = report_begin(state->since);
		call->user_fctx = state;
		MemoryContextSwitchTo(old);
	}
	call = SRF_PERCALL_SETUP();
	state = call->user_fctx;
	if (report_next(state->report, &state->row))
		SRF_RETURN_NEXT(call, changes_row(call, &state->row));
	functions_require_same(state->since, require_token(state->token));
	SRF_RETURN_DONE(call);
}

/* ------------------------------------------------------------------------
 * Statistics, by files
 * ------------------------------------------------------------------------
 */
typedef struct ChangeCount
{
	uint32		since;
	int64		files;
	int64		blocks;
	ReportRow	row;
} ChangeCount;

static void
count_file(const RelationFile *file, void *context)
{
	ChangeCount *count = context;

	report_file(file, count->since, &count->row);
	if (count->row.block_count > 0)
		count->files++;
	count->blocks += count->row.block_count;
}

Datum
pgstrata_change_stat(PG_FUNCTION_ARGS)
{
	char	   *token = token_argument(fcinfo);
	ChangeCount count = {0};
	Datum		values[3];
	bool		nulls[3] = {false, false, false};

	count.since = require_token(token);
	report_visit_files(count_file, &count);
	functions_require_same(count.since, require_token(token));
	values[0] = Int64GetDatum(count.files);
	values[1] = Int64GetDatum(count.blocks);
	values[2] = Int64GetDatum(count.blocks * BLCKSZ);
	PG_RETURN_DATUM(HeapTupleGetDatum(form_row(fcinfo, lengthof(values), values, nulls)));
}

typedef struct ChangedFiles
{
	uint32		since;
	FunctionCallInfo fcinfo;
	ReportRow	row;
} ChangedFiles;

static void
put_changed_file(const RelationFile *file, void *context)
{
	ChangedFiles *changed = context;
	ReturnSetInfo *result = (ReturnSetInfo *) changed->fcinfo->resultinfo;
	Datum		values[7];
	bool		nulls[7] = {false};

	report_file(file, changed->since, &changed->row);
	if (changed->row.block_count == 0)
		return;
	values[0] = CStringGetTextDatum(file->path);
	values[1] = ObjectIdGetDatum(file->spc);
	values[2] = ObjectIdGetDatum(file->db);
	values[3] = ObjectIdGetDatum(file->rel);
	values[4] = CStringGetTextDatum(forkNames[file->fork]);
	values[5] = Int32GetDatum(file->segment);
	values[6] = Int64GetDatum(changed->row.block_count);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	pfree(DatumGetPointer(values[0]));
	pfree(DatumGetPointer(values[4]));
}

Datum
pgstrata_changed_files(PG_FUNCTION_ARGS)
{
	char	   *token = token_argument(fcinfo);
	ChangedFiles changed = {require_token(token), fcinfo};

	(void) functions_row_type(fcinfo, 7);
	InitMaterializedSRF(fcinfo, 0);
	report_visit_files(put_changed_file, &changed);
	functions_require_same(changed.since, require_token(token));
	return (Datum) 0;
}

/* ------------------------------------------------------------------------
 * For who looks after the tracker
 * ------------------------------------------------------------------------
 */
Datum
pgstrata_tokens(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	MapToken   *tokens;
	uint32		count;

	functions_require_tracking();
	tokens = history_tokens(&count);
	(void) functions_row_type(fcinfo, 4);
	InitMaterializedSRF(fcinfo, 0);
	for (uint32 i = 0; i < count; i++)
	{
		Datum		values[4];
		bool		nulls[4] = {false};

		values[0] = CStringGetTextDatum(history_token_text(&tokens[i]));
		values[1] = TimestampTzGetDatum(tokens[i].at);
		values[2] = LSNGetDatum(tokens[i].lsn);
		values[3] = BoolGetDatum(tokens[i].kind == TOKEN_QUESTION);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* A crash may bring it back, which does no harm. */
Datum
pgstrata_drop_token(PG_FUNCTION_ARGS)
{
	char	   *token = token_argument(fcinfo);

	functions_require_tracking();
	PG_RETURN_BOOL(history_drop_token(token));
}

/*
 * What was forgotten must not come back, whatever happens. Files are written
 * past a server whether it tracks changes or not, and backups find changes
 * without the tracker, too: so all that it takes is a place to remember it.
 */
Datum
pgstrata_reset(PG_FUNCTION_ARGS)
{
	if (map.shared == NULL || map.lock == NULL)
		functions_require_tracking();
	history_drop(psprintf(HISTORY_WAS_RESET " \"%s\"", GetUserNameFromId(GetUserId(), false)));
	mapfile_flush_or_error();
	PG_RETURN_VOID();
}
