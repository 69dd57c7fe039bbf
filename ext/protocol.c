/*-------------------------------------------------------------------------
 *
 * protocol.c
 *	  What is marked, and flushed, when.
 *
 * The promise: a block that changed on disk since a token was made is marked,
 * or stamped, with the token's generation or a later one; or the token is
 * unknown. A change that was lost in a crash and that no recovery repeats is
 * none: hint bits.
 *
 * P1	A write reads the generation, marks, writes, and reads the generation
 *		again: if a bump came between, it marks again. So a write that ends
 *		after the bump has a mark of at least the new generation, and whoever
 *		copies the page after the bump either sees what was written or will
 *		find it marked. A buffered write in flight across the bump has ended
 *		before the checkpoint that starts the backup has.
 *
 * P2	The first sync call of a checkpoint flushes the map: all its buffers are
 *		written by then, and neither data files nor control file are durable.
 *		So when the control file names a checkpoint, the marks of all writes
 *		that its recovery will not repeat are in the file.
 *
 * P3	Truncation marks what it cuts off. Minor releases before February 2025
 *		let a checkpoint pass between its WAL and the cut: there it flushes. A
 *		file that is created is stamped: whatever a file of that name had
 *		before, all of it counts as changed. So an unlinked file's marks can be
 *		forgotten.
 *
 * P4	In recovery the startup process's reads mark as well. Without a full page
 *		image, recovery reads a page, finds it newer than the record, and does
 *		not write it: but it may have been written just before the crash,
 *		with a mark that never reached the file.
 *
 * P5	CREATE DATABASE and ALTER DATABASE ... SET TABLESPACE copy files past
 *		the storage layer: the database is stamped before its transaction
 *		commits, or in recovery at the record, which no restartpoint passes while
 *		it is replayed. But a checkpoint passes between the copy's record and the
 *		commit, and a backup that begins with it has neither record nor stamp. So
 *		from before the copy until it is stamped the database is locked
 *		exclusively, by the server if it moves, by us if it is new; and who asks
 *		for changes first looks at the locks, and then at the stamps. A stamp
 *		before the copy would not do instead: a token may be made between the
 *		two. A new database has one as well, for what a crash leaves of it.
 *
 *		DROP DATABASE removes files: what the map has of a database is forgotten
 *		when its directories are gone, by a transaction that has not
 *		committed, so nobody can use its number.
 *		Which database it is, the server says when it has locked it and looked
 *		at permissions: a name may mean another by then than at the statement's
 *		beginning, and a statement that is refused must change nothing. What
 *		a move leaves behind is forgotten while no other move can begin.
 *
 * P7	A write that does not register with the checkpoint (skipFsync) is made
 *		durable by its transaction, perhaps after a checkpoint that began
 *		after its WAL: the map is flushed before such a transaction commits.
 *
 * Temporary relations are of no interest: they are not backed up.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dirent.h>
#include <sys/stat.h>

#include "access/clog.h"
#include "access/commit_ts.h"
#include "access/multixact.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogutils.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_database.h"
#include "catalog/storage_xlog.h"
#include "commands/dbcommands_xlog.h"
#include "interpose.h"
#include "map.h"
#include "storage/bufpage.h"
#include "storage/lmgr.h"
#include "storage/md.h"
#include "tcop/utility.h"
#include "utils/syscache.h"

/*
 * Minor releases of February 2025 gave mdtruncate() a fourth argument, the
 * old length, before the new one. The library may be built for one and run
 * in the other: the running server's version decides, and the probe checks.
 */
bool		protocol_old_truncate_abi = false;
BlockNumber protocol_last_truncate_to = InvalidBlockNumber;

/* Calls seen by this process, for the probe. */
static uint64 calls[CALL_COUNT];

/*
 * P7: the oldest page LSN among this transaction's writes that will not be
 * synced by a checkpoint.
 */
#define NO_UNSYNCED_WRITES	PG_UINT64_MAX
static XLogRecPtr unsynced_lsn = NO_UNSYNCED_WRITES;

static ProcessUtility_hook_type previous_utility = NULL;
static object_access_hook_type previous_access = NULL;
static void (*previous_dbase_redo) (XLogReaderState *record);
static void (*previous_smgr_redo) (XLogReaderState *record);

uint64
protocol_calls(int call)
{
	return calls[call];
}

/* ------------------------------------------------------------------------
 * P1, P3, P4: the storage manager's calls
 * ------------------------------------------------------------------------
 */
static inline bool
is_tracked(SMgrRelation reln)
{
#ifdef PGSTRATA_MEASURE
	if (map.shared->bypass)
		return false;
#endif
	return !REL_IS_TEMP(REL_OF(reln));
}

static inline uint32
mark_before(SMgrRelation reln, ForkNumber fork, BlockNumber block, BlockNumber count)
{
	if (!is_tracked(reln))
		return 0;
	return map_mark(REL_OF(reln), fork, block, count);
}

static inline void
mark_after(SMgrRelation reln, ForkNumber fork, BlockNumber block, BlockNumber count,
		   uint32 generation)
{
	if (generation == 0)
		return;
	pg_memory_barrier();
	if (unlikely(map_generation() != generation))
		(void) map_mark(REL_OF(reln), fork, block, count);
}

static inline void
mark_recovery_read(SMgrRelation reln, ForkNumber fork, BlockNumber block, BlockNumber count)
{
	if (unlikely(InRecovery) && is_tracked(reln))
		(void) map_mark(REL_OF(reln), fork, block, count);
}

/*
 * The page's LSN is where its WAL record ends. If that is beyond the redo
 * pointer of the last checkpoint, recovery will write, and mark, the page.
 */
static void
note_unsynced(SMgrRelation reln, const void *page)
{
	XLogRecPtr	lsn = page == NULL ? InvalidXLogRecPtr : PageGetLSN((Page) page);

	if (is_tracked(reln) && lsn < unsynced_lsn)
		unsynced_lsn = lsn;
}

void
tracked_create(SMgrRelation reln, ForkNumber fork, bool isRedo)
{
	uint32		generation = map_generation();
	bool		tracked = is_tracked(reln);

	calls[CALL_CREATE]++;

	/* recovery "creates" whatever it is about to touch */
	if (tracked && isRedo && mdexists(reln, fork))
		tracked = false;
	if (tracked)
		map_stamp_fork(REL_OF(reln), fork);
	mdcreate(reln, fork, isRedo);
	pg_memory_barrier();
	if (tracked && map_generation() != generation)
		map_stamp_fork(REL_OF(reln), fork);
}

void
tracked_unlink(RelBackend rel, ForkNumber fork, bool isRedo)
{
	calls[CALL_UNLINK]++;
	mdunlink(rel, fork, isRedo);
	if (REL_IS_TEMP(rel))
		return;
	for (ForkNumber f = 0; f <= MAX_FORKNUM; f++)
		if (fork == f || fork == InvalidForkNumber)
			map_forget_fork(rel, f);
}

void
tracked_extend(SMgrRelation reln, ForkNumber fork, BlockNumber block,
			   PageBytes page, bool skipFsync)
{
	uint32		generation = mark_before(reln, fork, block, 1);

	calls[CALL_EXTEND]++;
	if (skipFsync)
		note_unsynced(reln, page);
	mdextend(reln, fork, block, page, skipFsync);
	mark_after(reln, fork, block, 1, generation);
}

#if PG_VERSION_NUM >= 160000
void
tracked_zeroextend(SMgrRelation reln, ForkNumber fork, BlockNumber block,
				   int count, bool skipFsync)
{
	uint32		generation = mark_before(reln, fork, block, count);

	calls[CALL_ZEROEXTEND]++;
	if (skipFsync)
		note_unsynced(reln, NULL);
	mdzeroextend(reln, fork, block, count, skipFsync);
	mark_after(reln, fork, block, count, generation);
}
#endif

#if PG_VERSION_NUM >= 170000
void
tracked_readv(SMgrRelation reln, ForkNumber fork, BlockNumber block,
			  void **pages, BlockNumber count)
{
	calls[CALL_READ]++;
	mark_recovery_read(reln, fork, block, count);
	mdreadv(reln, fork, block, pages, count);
}

void
tracked_writev(SMgrRelation reln, ForkNumber fork, BlockNumber block,
			   const void **pages, BlockNumber count, bool skipFsync)
{
	uint32		generation = mark_before(reln, fork, block, count);

	calls[CALL_WRITE]++;
	if (skipFsync)
		for (BlockNumber i = 0; i < count; i++)
			note_unsynced(reln, pages[i]);
	mdwritev(reln, fork, block, pages, count, skipFsync);
	mark_after(reln, fork, block, count, generation);
}
#else
#if PG_VERSION_NUM >= 160000
#define READ_PAGE	void
#define WRITE_PAGE	const void
#else
#define READ_PAGE	char
#define WRITE_PAGE	char
#endif
void
tracked_read(SMgrRelation reln, ForkNumber fork, BlockNumber block, READ_PAGE *page)
{
	calls[CALL_READ]++;
	mark_recovery_read(reln, fork, block, 1);
	mdread(reln, fork, block, page);
}

void
tracked_write(SMgrRelation reln, ForkNumber fork, BlockNumber block,
			  WRITE_PAGE *page, bool skipFsync)
{
	uint32		generation = mark_before(reln, fork, block, 1);

	calls[CALL_WRITE]++;
	if (skipFsync)
		note_unsynced(reln, page);
	mdwrite(reln, fork, block, page, skipFsync);
	mark_after(reln, fork, block, 1, generation);
}
#endif

#if PG_VERSION_NUM >= 180000
void
tracked_startreadv(PgAioHandle *ioh, SMgrRelation reln, ForkNumber fork,
				   BlockNumber block, void **pages, BlockNumber count)
{
	calls[CALL_STARTREAD]++;
	mark_recovery_read(reln, fork, block, count);
	mdstartreadv(ioh, reln, fork, block, pages, count);
}
#endif

/*
 * Called with (old length, new length), or with the new length alone and
 * rubbish after it. All arguments are passed on, which suits both.
 *
 * The server has written the WAL record. In old minors a checkpoint that begins
 * after that record waits for the truncation with its end alone, and may have
 * flushed before our marks: its recovery repeats no truncation. So the marks
 * go to the file before the blocks go. An error now would be worse than a map
 * that is lost: the buffers are gone already. If the file can be neither
 * written nor removed, the tracker ends, and goes on trying to remove it: after
 * a crash it would be believed. In recovery no restartpoint passes a record
 * that is being replayed.
 */
void
tracked_truncate(SMgrRelation reln, ForkNumber fork, BlockNumber a, BlockNumber b)
{
	void		(*volatile truncate) (SMgrRelation, ForkNumber, BlockNumber, BlockNumber) =
		(void (*) (SMgrRelation, ForkNumber, BlockNumber, BlockNumber)) (void (*) (void)) mdtruncate;
	BlockNumber from = protocol_old_truncate_abi ? mdnblocks(reln, fork) : a;
	BlockNumber to = protocol_old_truncate_abi ? a : b;
	uint32		generation = 0;

	calls[CALL_TRUNCATE]++;
	protocol_last_truncate_to = to;
	if (from != InvalidBlockNumber && from > to)
		generation = mark_before(reln, fork, to, from - to);
	if (protocol_old_truncate_abi && generation != 0 && !InRecovery &&
		!mapfile_flush_or_discard())
		lifecycle_refuse("the page map could be neither flushed nor removed before a truncation: %m");
	truncate(reln, fork, a, b);
	if (from != InvalidBlockNumber && from > to)
		mark_after(reln, fork, to, from - to, generation);
}

/* ------------------------------------------------------------------------
 * P2: the checkpoint's sync calls
 * ------------------------------------------------------------------------
 */

/*
 * Flush once per checkpoint: CheckpointStats is zeroed when one begins, and
 * ckpt_sync_t is set after the last buffer was written. It may be this
 * process's first checkpoint, or the startup process's.
 */
static void
flush_at_first_sync(void)
{
	static TimestampTz last_sync = 0;
	static XLogRecPtr last_redo = InvalidXLogRecPtr;
	XLogRecPtr	redo = GetRedoRecPtr();

	if (CheckpointStats.ckpt_sync_t == last_sync && redo == last_redo)
		return;
	last_sync = CheckpointStats.ckpt_sync_t;
	last_redo = redo;
	lifecycle_in_checkpoint();
	(void) mapfile_flush(redo);
}

int
tracked_sync(const FileTag *tag, char *path)
{
	flush_at_first_sync();
	return mdsyncfiletag(tag, path);
}

int
tracked_clog_sync(const FileTag *tag, char *path)
{
	flush_at_first_sync();
	return clogsyncfiletag(tag, path);
}

int
tracked_committs_sync(const FileTag *tag, char *path)
{
	flush_at_first_sync();
	return committssyncfiletag(tag, path);
}

int
tracked_offsets_sync(const FileTag *tag, char *path)
{
	flush_at_first_sync();
	return multixactoffsetssyncfiletag(tag, path);
}

int
tracked_members_sync(const FileTag *tag, char *path)
{
	flush_at_first_sync();
	return multixactmemberssyncfiletag(tag, path);
}

/* ------------------------------------------------------------------------
 * P5: databases copied or removed as directories
 * ------------------------------------------------------------------------
 */

/*
 * The database whose files the current transaction copies. It is stamped, and
 * the map flushed, before each commit until then: SET TABLESPACE commits in
 * its middle.
 */
static Oid	copied_database = InvalidOid;

/* What the current statement has made or dropped, if it gets that far. */
static Oid	made_database = InvalidOid;
static Oid	dropped_database = InvalidOid;

/* It moves a database to another tablespace: which one, from where. */
static bool moves_database = false;
static Oid	moved_database = InvalidOid;
static Oid	left_tablespace = InvalidOid;

/* As it was before this command: what that has written is not seen yet. */
static Oid
tablespace_of_database(Oid db)
{
	HeapTuple	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(db));
	Oid			spc = InvalidOid;

	if (HeapTupleIsValid(tuple))
	{
		spc = ((Form_pg_database) GETSTRUCT(tuple))->dattablespace;
		ReleaseSysCache(tuple);
	}
	return spc;
}

/* Called by the server while it holds the lock on the object. */
static void
tracked_access(ObjectAccessType access, Oid class, Oid object, int sub, void *arg)
{
	if (previous_access)
		previous_access(access, class, object, sub, arg);
	if (class != DatabaseRelationId || sub != 0)
		return;
	if (access == OAT_POST_CREATE)
	{
		made_database = copied_database = object;
		LockSharedObject(DatabaseRelationId, object, 0, AccessExclusiveLock);
		map_stamp_database(object);
	}
	else if (access == OAT_POST_ALTER && moves_database)
	{
		moved_database = copied_database = object;
		left_tablespace = tablespace_of_database(object);
	}
	else if (access == OAT_DROP)
		dropped_database = object;
}

/*
 * Are the database's files being replaced? Others that lock it so drop it or
 * give it another name, and that it counts as changed meanwhile does no harm.
 * Asked without taking a lock: nobody shall wait for us.
 */
bool
protocol_database_is_replaced(Oid db)
{
	LOCKTAG		tag;
	int			holders;

	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, db, 0);
	pfree(GetLockConflicts(&tag, AccessShareLock, &holders));
	return holders > 0;
}

static void
forget_statement(void)
{
	made_database = dropped_database = moved_database = left_tablespace = InvalidOid;
	moves_database = false;
}

static bool
is_there(const char *path)
{
	struct stat st;

	/* in doubt it is */
	return stat(path, &st) == 0 || errno != ENOENT;
}

/* Has the database a directory in any tablespace? */
static bool
database_is_there(Oid db)
{
	char		path[MAXPGPATH];
	DIR		   *dir;
	struct dirent *entry;
	bool		found;

	snprintf(path, sizeof(path), "base/%u", db);
	if (is_there(path))
		return true;
	if ((dir = opendir("pg_tblspc")) == NULL)
		return true;
	found = false;
	errno = 0;
	while (!found && (entry = readdir(dir)) != NULL)
	{
		snprintf(path, sizeof(path), "pg_tblspc/%s/%s/%u", entry->d_name,
				 TABLESPACE_VERSION_DIRECTORY, db);
		found = entry->d_name[0] != '.' && is_there(path);
		errno = 0;
	}
	found = found || errno != 0;
	closedir(dir);
	return found;
}

/* Nothing is left of a database, and nobody can make one of its number now. */
static void
forget_if_gone(Oid db)
{
	if (OidIsValid(db) && !database_is_there(db))
		map_forget_database(InvalidOid, db);
}

/* A move of a database removes one directory of several. */
static void
forget_place_if_gone(Oid spc, Oid db)
{
	char	   *path = GetDatabasePath(db, spc);

	if (!is_there(path))
		map_forget_database(spc, db);
	pfree(path);
}

/*
 * The move has committed, and the server has released the database. Another move
 * could bring it back, and what is written there then must not be forgotten:
 * moves lock the database exclusively, so any lock keeps them away. If one
 * is at it, more stays in the map than need be, which is no harm.
 */
static void
forget_left_place(void)
{
	LOCKTAG		tag;

	if (!OidIsValid(left_tablespace))
		return;
	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, moved_database, 0);
	if (LockAcquire(&tag, AccessShareLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return;
	forget_place_if_gone(left_tablespace, moved_database);
	LockRelease(&tag, AccessShareLock, false);
}

static bool
sets_tablespace(Node *stmt)
{
	ListCell   *cell;

	if (IsA(stmt, AlterDatabaseStmt))
		foreach(cell, ((AlterDatabaseStmt *) stmt)->options)
			if (strcmp(lfirst_node(DefElem, cell)->defname, "tablespace") == 0)
				return true;
	return false;
}

static void
tracked_utility(PlannedStmt *pstmt, const char *query, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *env, DestReceiver *dest, QueryCompletion *qc)
{
	Node	   *stmt = pstmt->utilityStmt;
	ProcessUtility_hook_type next = previous_utility ? previous_utility :
		standard_ProcessUtility;

	if (!IsA(stmt, CreatedbStmt) && !IsA(stmt, DropdbStmt) && !sets_tablespace(stmt))
	{
		next(pstmt, query, readOnlyTree, context, params, env, dest, qc);
		return;
	}
	forget_statement();
	moves_database = IsA(stmt, AlterDatabaseStmt);
	PG_TRY();
	{
		next(pstmt, query, readOnlyTree, context, params, env, dest, qc);
	}
	PG_CATCH();
	{
		/* the files of one that could not be made were removed */
		forget_if_gone(made_database);
		forget_statement();
		PG_RE_THROW();
	}
	PG_END_TRY();
	forget_if_gone(dropped_database);
	forget_left_place();
	forget_statement();
}

static void
tracked_dbase_redo(XLogReaderState *record)
{
	uint8		info = XLogRecGetInfo(record) & ~XLR_INFO_MASK;

	if (info == XLOG_DBASE_DROP)
	{
		xl_dbase_drop_rec *drop = (xl_dbase_drop_rec *) XLogRecGetData(record);

		previous_dbase_redo(record);
		for (int i = 0; i < drop->ntablespaces; i++)
			forget_place_if_gone(drop->tablespace_ids[i], drop->db_id);
		forget_if_gone(drop->db_id);
		return;
	}
	previous_dbase_redo(record);
	if (info == XLOG_DBASE_CREATE_FILE_COPY)
		map_stamp_database(((xl_dbase_create_file_copy_rec *) XLogRecGetData(record))->db_id);
}

/*
 * A relation whose creation recovery repeats may be there already, so that
 * tracked_create() does not see it as new: its stamp may have been lost.
 */
static void
tracked_smgr_redo(XLogReaderState *record)
{
	if ((XLogRecGetInfo(record) & ~XLR_INFO_MASK) == XLOG_SMGR_CREATE)
	{
		xl_smgr_create *create = (xl_smgr_create *) XLogRecGetData(record);
		RelBackend	rel;

#if PG_VERSION_NUM >= 160000
		rel.locator = create->rlocator;
#else
		rel.node = create->rnode;
#endif
		rel.backend = -1;
		map_stamp_fork(rel, create->forkNum);
	}
	previous_smgr_redo(record);
}

/* ------------------------------------------------------------------------
 * P5 and P7: before a transaction commits
 * ------------------------------------------------------------------------
 */
static void
tracked_transaction(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
		case XACT_EVENT_PARALLEL_PRE_COMMIT:
			if (OidIsValid(copied_database))
			{
				map_stamp_database(copied_database);
				mapfile_flush_or_error();
			}
			else if (unsynced_lsn != NO_UNSYNCED_WRITES && unsynced_lsn <= GetRedoRecPtr())
				mapfile_flush_or_error();
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PARALLEL_ABORT:
			copied_database = InvalidOid;
			unsynced_lsn = NO_UNSYNCED_WRITES;
			break;
		default:
			break;
	}
}

/* All but the tables, which interpose.c writes. */
void
protocol_install_hooks(void)
{
	previous_utility = ProcessUtility_hook;
	ProcessUtility_hook = tracked_utility;
	previous_access = object_access_hook;
	object_access_hook = tracked_access;
	previous_dbase_redo = RmgrTable[RM_DBASE_ID].rm_redo;
	RmgrTable[RM_DBASE_ID].rm_redo = tracked_dbase_redo;
	previous_smgr_redo = RmgrTable[RM_SMGR_ID].rm_redo;
	RmgrTable[RM_SMGR_ID].rm_redo = tracked_smgr_redo;
	RegisterXactCallback(tracked_transaction, NULL);
}
