/*-------------------------------------------------------------------------
 *
 * probe.c
 *	  Proof, in the running server, that the storage tables are used.
 *
 * interpose.c found tables and wrote to them. Here the worker makes a scratch
 * file through the server's own smgr functions, does to it whatever the
 * tracker must see, and counts whether each call arrived. A compiler that
 * inlined or duplicated the file layer would be found out, and so would a
 * mdtruncate() whose arguments are not as its version says.
 *
 * The scratch file has the name of a temporary relation: nobody backs it up,
 * and the server removes it at start if we were killed. A disk that is full, or
 * no more descriptors, prove nothing: then the probe has to be repeated.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_tablespace_d.h"
#include "interpose.h"
#include "miscadmin.h"
#include "storage/bufpage.h"
#include "storage/fd.h"
#include "storage/smgr.h"
#if PG_VERSION_NUM >= 180000
#include "storage/aio.h"
#endif

/* Another number than any backend's temporary relations would have. */
#define PROBE_BACKEND	0
#define PROBE_RELATION	1

#if PG_VERSION_NUM >= 160000
static PGIOAlignedBlock block;
#else
static PGAlignedBlock block;
#endif

/* Calls counted before each step. */
static uint64 before[CALL_COUNT];

static const char *const call_names[CALL_COUNT] = {
	"create", "unlink", "extend", "zeroextend", "read", "startread", "write", "truncate"
};

static void
begin_step(void)
{
	for (int i = 0; i < CALL_COUNT; i++)
		before[i] = protocol_calls(i);
}

/* Did the step's call arrive? */
static bool
step_seen(TrackedCall call)
{
	if (protocol_calls(call) > before[call])
		return true;
	lifecycle_refuse("the server's \"%s\" calls do not pass its storage table",
					 call_names[call]);
	return false;
}

/* Some database that has a directory. */
static Oid
any_database(void)
{
	DIR		   *dir = AllocateDir("base");
	struct dirent *entry;
	Oid			db = InvalidOid;

	while (!OidIsValid(db) && (entry = ReadDir(dir, "base")) != NULL)
		if (strspn(entry->d_name, "0123456789") == strlen(entry->d_name))
			db = (Oid) strtoul(entry->d_name, NULL, 10);
	FreeDir(dir);
	return db;
}

static SMgrRelation
open_scratch(void)
{
#if PG_VERSION_NUM >= 160000
	RelFileLocator rel = {DEFAULTTABLESPACE_OID, any_database(), PROBE_RELATION};
#else
	RelFileNode rel = {DEFAULTTABLESPACE_OID, any_database(), PROBE_RELATION};
#endif

	return smgropen(rel, PROBE_BACKEND);
}

static bool
probe_growth(SMgrRelation reln)
{
	begin_step();
	smgrcreate(reln, MAIN_FORKNUM, true);
	if (!step_seen(CALL_CREATE))
		return false;

	memset(block.data, 0, BLCKSZ);
	begin_step();
	smgrextend(reln, MAIN_FORKNUM, 0, block.data, true);
	if (!step_seen(CALL_EXTEND))
		return false;
#if PG_VERSION_NUM >= 160000
	begin_step();
	smgrzeroextend(reln, MAIN_FORKNUM, 1, 2, true);
	return step_seen(CALL_ZEROEXTEND);
#else
	smgrextend(reln, MAIN_FORKNUM, 1, block.data, true);
	smgrextend(reln, MAIN_FORKNUM, 2, block.data, true);
	return true;
#endif
}

#if PG_VERSION_NUM >= 180000
/* Read as the buffer manager does, at once: the buffer is our own. */
static bool
probe_startread(SMgrRelation reln)
{
	PgAioReturn result;
	PgAioWaitRef wait;
	PgAioHandle *handle = pgaio_io_acquire(NULL, &result);
	void	   *page = block.data;

	begin_step();
	pgaio_io_get_wref(handle, &wait);
	pgaio_io_set_flag(handle, PGAIO_HF_REFERENCES_LOCAL);
	smgrstartreadv(handle, reln, MAIN_FORKNUM, 0, &page, 1);
	pgaio_wref_wait(&wait);
	return step_seen(CALL_STARTREAD);
}
#endif

static bool
probe_access(SMgrRelation reln)
{
	begin_step();
	smgrwrite(reln, MAIN_FORKNUM, 0, block.data, true);
	if (!step_seen(CALL_WRITE))
		return false;
	begin_step();
	smgrread(reln, MAIN_FORKNUM, 0, block.data);
	if (!step_seen(CALL_READ))
		return false;
#if PG_VERSION_NUM >= 180000
	return probe_startread(reln);
#else
	return true;
#endif
}

static bool
probe_truncate(SMgrRelation reln)
{
	ForkNumber	fork = MAIN_FORKNUM;
	BlockNumber to = 1;

	begin_step();
	protocol_last_truncate_to = InvalidBlockNumber;
#if PG_VERSION_NUM >= 180000
	{
		BlockNumber from = 3;

		smgrtruncate(reln, &fork, 1, &from, &to);
	}
#else
	smgrtruncate(reln, &fork, 1, &to);
#endif
	if (!step_seen(CALL_TRUNCATE))
		return false;
	if (protocol_last_truncate_to == to && smgrnblocks(reln, fork) == to)
		return true;
	lifecycle_refuse("the server's truncate calls do not have the expected arguments");
	return false;
}

static bool
probe_unlink(SMgrRelation reln)
{
	begin_step();
	smgrdounlinkall(&reln, 1, false);
	return step_seen(CALL_UNLINK);
}

/*
 * Run in the worker. If it says no, it has refused; an error says that it
 * could not find out.
 */
bool
probe_tables(void)
{
	SMgrRelation reln = open_scratch();
	bool		proved;

	/* a file left by one that was killed goes first */
	proved = probe_unlink(reln) && probe_growth(reln) &&
		probe_access(reln) && probe_truncate(reln);
	return probe_unlink(reln) && proved;
}
