/*-------------------------------------------------------------------------
 *
 * lifecycle.c
 *	  Start, worker, stop: when an old map may be believed (P6).
 *
 * A map on disk knows the changes up to some moment. It may be believed only
 * if nobody has written to the data directory since without us:
 *
 *	- It is whole, ours, of this cluster (system identifier), and complete.
 *	- postmaster.opts has the inode and the modification time on record. The
 *	  server rewrites it at every start, so a start without the library shows,
 *	  and so does a copied or restored data directory.
 *	- The map is clean: pg_control has the inode, modification time and checksum
 *	  on record. Whatever writes it afterwards (pg_resetwal, pg_rewind,
 *	  pg_checksums, a single-user session) shows. pg_checksums may have done so
 *	  before the postmaster is gone: then the map is not made clean.
 *	- The map is not clean: pg_control's redo pointer is one of the two on
 *	  record (mapfile.c), and recovery marks what was lost. The last checkpoint
 *	  of a server that stops is never on record, and pg_control must not say
 *	  that the cluster was shut down: anybody may have written to it.
 *
 * In doubt the history is void: it begins anew, and says why. Nothing here
 * stops the server from starting. A server that refuses to track has no map at
 * its end: pages may have changed unseen, and to the next one the record of an
 * old map could look right.
 *
 * The order at start: the postmaster loads the map into memory before it has
 * children, saves it (as not clean) when it makes shared memory, and starts a
 * worker. The worker records the new postmaster.opts, runs the probe, and from
 * then on the tracker answers. A crash anywhere before that leaves a map
 * whose record does not fit: void, not wrong.
 *
 * The worker then watches for checkpoints that P2 did not see, having had no
 * file to sync, and flushes and records for them: otherwise a quiet server's
 * crash would void its history.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogrecovery.h"
#include "catalog/pg_control.h"
#include "interpose.h"
#include "map.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/shmem.h"
#include "utils/guc.h"
#include "utils/pg_lsn.h"
#include "utils/wait_event.h"

#define POSTMASTER_OPTS		"postmaster.opts"

/* A checkpoint unseen by P2 goes on record within this time. */
#define WORKER_NAP_MS		1000

/* What failed is repeated after as many naps as it failed times, up to this. */
#define MAX_NAPS			30

/* The log says so when so much of the map is in use. */
#define NEARLY_FULL_PERCENT	90

/* Why there is no map at all; set in the postmaster, inherited. */
static char early_refusal[200];
static bool preloaded = false;

static shmem_request_hook_type previous_shmem_request = NULL;
static shmem_startup_hook_type previous_shmem_startup = NULL;

/* ------------------------------------------------------------------------
 * Refusing
 * ------------------------------------------------------------------------
 */

/*
 * The map's file goes. A flush that is under way does not know of the refusal, and
 * may make the file anew: it is waited for. The postmaster is alone.
 */
static void
discard_map(void)
{
	bool		gone;
	int			save_errno;

	if (IsUnderPostmaster)
		LWLockAcquire(map.lock, LW_EXCLUSIVE);
	gone = mapfile_discard();
	save_errno = errno;
	if (IsUnderPostmaster)
		LWLockRelease(map.lock);
	errno = save_errno;
	if (!gone)
		ereport(WARNING,
				(errcode_for_file_access(),
				 errmsg("pgstrata: could not remove page map \"%s\": %m", PAGE_MAP_FILE),
				 errhint("Remove it while the server is down.")));
}

/*
 * From here on no answer but "unknown". The first reason is kept. Without a map
 * in memory nobody records this start, so postmaster.opts will tell of it.
 */
void
lifecycle_refuse(const char *fmt,...)
{
	char	   *reason = map.shared != NULL ? map.shared->refusal : early_refusal;
	va_list		args;

	if (reason[0] != '\0')
		return;
	va_start(args, fmt);
	vsnprintf(reason, sizeof(early_refusal), fmt, args);
	va_end(args);
	ereport(WARNING,
			(errmsg("pgstrata does not track changes: %s", reason),
			 errhint("Incremental backups will compare pages instead.")));
	if (map.shared != NULL)
		discard_map();
}

/* Why no change is known now, or NULL if the tracker can be trusted. */
const char *
lifecycle_refusal(void)
{
	if (!preloaded)
		return "pgstrata is not in shared_preload_libraries";
	if (early_refusal[0] != '\0')
		return early_refusal;
	if (map_is_refused())
		return map.shared->refusal;
	if (map.shared->overflow)
		return "the page map is full: raise pgstrata.map_size and restart";
	if (!enableFsync)
		return "fsync is off";
	if (map.shared->verified)
		return NULL;
	return map.shared->probes_failed > 0 ?
		"the probe of the storage tables failed and will be repeated, see the server log" :
		"the tracker's worker has not proved the storage tables yet";
}

/* Is it only that the worker has not got so far? */
bool
lifecycle_is_starting(void)
{
	return preloaded && early_refusal[0] == '\0' && !map_is_refused() &&
		!map.shared->verified && map.shared->probes_failed == 0;
}

/* ------------------------------------------------------------------------
 * P6: may the map be believed?
 * ------------------------------------------------------------------------
 */

/* Zeros if the file is not there. */
static FileIdentity
file_identity(const char *path)
{
	FileIdentity identity = {0, 0};
	struct stat st;

	if (stat(path, &st) == 0)
	{
		identity.inode = st.st_ino;
		identity.modified = (uint64) st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
	}
	return identity;
}

static bool
is_same_file(FileIdentity a, FileIdentity b)
{
	return a.inode == b.inode && a.modified == b.modified && a.inode != 0;
}

static bool
is_shut_down(const ControlFileData *control)
{
	return control->state == DB_SHUTDOWNED || control->state == DB_SHUTDOWNED_IN_RECOVERY;
}

/* Why the map of this header must not be believed, or NULL. */
static const char *
doubt(const MapHeader *header, const ControlFileData *control)
{
	if (header->system_identifier != control->system_identifier)
		return "the page map is of another cluster";
	if (header->overflow)
		return "the page map was full";
	if (!is_same_file(header->opts, file_identity(POSTMASTER_OPTS)))
		return "the server ran without pgstrata, or the data directory was copied";
	if (header->clean)
		return is_shut_down(control) && header->control_crc == control->crc &&
			is_same_file(header->control, file_identity(XLOG_CONTROL_FILE)) ? NULL :
			"pg_control was written after the last stop";
	if (control->checkPointCopy.redo != header->redo[0] &&
		control->checkPointCopy.redo != header->redo[1])
		return "the last checkpoint is not on the page map's record";
	if (is_shut_down(control))
		return "the server was shut down, but the page map was not saved then";
	return NULL;
}

/* What was loaded, for a start that gets nowhere, and for the stop. */
static struct
{
	bool		clean;
	FileIdentity control;
	pg_crc32c	control_crc;
	uint32		data_checksum_version;	/* the same until the server stops */
}			loaded;

/* Load the map, or begin a history. */
static void
load_map(void)
{
	FileIdentity identity = file_identity(XLOG_CONTROL_FILE);
	ControlFileData control;
	MapHeader	header;
	const char *why = NULL;
	bool		known;

	known = mapfile_read_control(&control) && mapfile_read_header(&header, &why);
	if (known && (why = doubt(&header, &control)) != NULL)
		known = false;
	if (known && !mapfile_load(&header, &why))
	{
		known = false;
		if (!map_recreate(pgstrata_map_size))
		{
			lifecycle_refuse("memory for the page map could not be mapped");
			return;
		}
	}
	if (!known)
	{
		memset(map.header, 0, sizeof(MapHeader));
		history_begin(why != NULL ? why : "pg_control could not be read",
					  control.checkPoint);
		ereport(LOG, (errmsg("pgstrata: history of changes starts anew: %s",
							 map.header->since_why)));
	}
	else if (!header.clean)
		history_side_forks_changed();

	loaded.clean = is_shut_down(&control);
	loaded.control = identity;
	loaded.control_crc = control.crc;
	loaded.data_checksum_version = control.data_checksum_version;
	map.header->system_identifier = control.system_identifier;
	map.header->clean = false;
	map.header->redo[0] = map.header->redo[1] = control.checkPointCopy.redo;

	/* bound to none: the next stop binds it */
	memset(&map.header->control, 0, sizeof(FileIdentity));
	map.header->control_crc = 0;
}

/* ------------------------------------------------------------------------
 * Start
 * ------------------------------------------------------------------------
 */
static void
request_memory(void)
{
	if (previous_shmem_request)
		previous_shmem_request();
	RequestNamedLWLockTranche("pgstrata", 1);
}

/*
 * The postmaster makes shared memory: at start, and again after a child has
 * crashed and all have gone. The map is still there then, with all marks but
 * those that the killed were about to make.
 */
static void
start_memory(void)
{
	static bool started = false;
	bool		right;

	if (previous_shmem_startup)
		previous_shmem_startup();
	map.lock = &GetNamedLWLockTranche("pgstrata")->lock;
	if (!started)
	{
		started = true;
		if (!mapfile_save())
			lifecycle_refuse("the page map could not be written");
		return;
	}
	right = map_after_crash();
	history_side_forks_changed();
	map.shared->verified = false;
	map.shared->rewrite = true;
	if (map.shared->compacting || !right)
	{
		history_begin(right ? "the server crashed while generations were renumbered" :
					  "a crash damaged the page map in memory",
					  InvalidXLogRecPtr);
		map.shared->compacting = false;
		if (!mapfile_save())
			lifecycle_refuse("the page map could not be written");
	}
}

static void postmaster_exits(int code, Datum arg);

static void
register_worker(void)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
	worker.bgw_start_time = BgWorkerStart_PostmasterStart;
	worker.bgw_restart_time = 1;
	strlcpy(worker.bgw_name, "pgstrata tracker", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "pgstrata tracker", BGW_MAXLEN);
	strlcpy(worker.bgw_library_name, "pgstrata", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "pgstrata_worker_main",
			sizeof(worker.bgw_function_name));
	RegisterBackgroundWorker(&worker);
}

/*
 * The server's version at run time; the library may have been built against
 * another minor release.
 */
static bool
truncate_has_old_abi(void)
{
	int			version = atoi(GetConfigOption("server_version_num", false, false));

	return version < 150011 || (version >= 160000 && version < 160007) ||
		(version >= 170000 && version < 170003);
}

/* Called once, by the postmaster, while it loads libraries. */
void
lifecycle_start(void)
{
	char	   *why;

	preloaded = true;
	if (pgstrata_map_size == 0)
		strlcpy(early_refusal, "pgstrata.map_size is 0", sizeof(early_refusal));
	else if (!IsPostmasterEnvironment)
	{
		/* a single-user session changes pages, and has no worker */
		if (!mapfile_discard())
			ereport(WARNING,
					(errmsg("pgstrata: could not remove page map \"%s\": %m", PAGE_MAP_FILE)));
		lifecycle_refuse("this is a single-user session");
	}
	else if (!enableFsync)
		lifecycle_refuse("fsync is off");
	else if (wal_level == WAL_LEVEL_MINIMAL)
		lifecycle_refuse("wal_level is minimal");
	else if ((why = interpose_find()) != NULL)
		lifecycle_refuse("%s", why);
	else if (!map_create(pgstrata_map_size))
		lifecycle_refuse("memory for the page map could not be mapped");
	if (early_refusal[0] != '\0')
		return;

	protocol_old_truncate_abi = truncate_has_old_abi();
	load_map();
	if (early_refusal[0] == '\0' && (why = interpose_patch()) != NULL)
		lifecycle_refuse("%s", why);
	if (map.shared == NULL)
		return;
	protocol_install_hooks();
	previous_shmem_request = shmem_request_hook;
	shmem_request_hook = request_memory;
	previous_shmem_startup = shmem_startup_hook;
	shmem_startup_hook = start_memory;
	register_worker();
	on_proc_exit(postmaster_exits, 0);
}

/* ------------------------------------------------------------------------
 * The worker
 * ------------------------------------------------------------------------
 */

/*
 * Record a completed checkpoint that is not on record. If it fails time and
 * again, as on a full disk, try more and more seldom.
 */
static void
record_checkpoint(void)
{
	static uint32 failures = 0;
	static uint32 naps = 0;
	ControlFileData control;

	if (GetRedoRecPtr() == map.header->redo[0] || naps > 0)
	{
		naps -= naps > 0;
		return;
	}
	if (mapfile_read_control(&control) &&
		control.checkPointCopy.redo != map.header->redo[0])
	{
		failures = mapfile_flush_seen() ? 0 : failures + 1;
		naps = failures > 0 ? Min(failures - 1, MAX_NAPS) : 0;
	}
}

/*
 * A map that could not be removed when the tracker refused is one that a crash
 * would leave to be believed, until a checkpoint has ended that is not on its
 * record.
 */
static void
remove_refused_map(void)
{
	if (access(PAGE_MAP_FILE, F_OK) != 0)
		return;
	LWLockAcquire(map.lock, LW_EXCLUSIVE);
	(void) mapfile_discard();
	LWLockRelease(map.lock);
}

/*
 * While fsync is off, crashes lose what we think is kept. It may have been
 * turned off while there was no worker.
 */
static void
check_settings(void)
{
	static bool had_fsync = true;

	if (had_fsync && !enableFsync)
	{
		history_drop("fsync was turned off");
		mapfile_flush_or_error();
	}
	had_fsync = enableFsync;
}

/*
 * The probe could not be made, which is no answer. Leave, to come back: the
 * postmaster starts the next worker, and nothing of this one is left.
 */
static void
probe_failed(void)
{
	uint32		naps = Min(++map.shared->probes_failed, MAX_NAPS);

	EmitErrorReport();
	FlushErrorState();
	activity_show_tracking();
	while (naps-- > 0 && !ShutdownRequestPending)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 WORKER_NAP_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
	proc_exit(1);
}

static void
take_up_work(void)
{
	volatile bool proved = false;

	PG_TRY();
	{
		proved = probe_tables();
	}
	PG_CATCH();
	{
		probe_failed();
	}
	PG_END_TRY();

	LWLockAcquire(map.lock, LW_EXCLUSIVE);
	map.header->opts = file_identity(POSTMASTER_OPTS);
	map.shared->verified = proved;
	map.shared->probes_failed = 0;
	LWLockRelease(map.lock);
	(void) mapfile_flush(InvalidXLogRecPtr);
}

/* A map that is full, or soon will be, is something to tell once. */
static void
watch_room(void)
{
	static bool told_full = false;
	static bool told_nearly = false;
	MapShared  *shared = map.shared;
	uint64		used = shared->pages_used - shared->free_count;

	if (shared->overflow && !told_full)
		ereport(WARNING,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("pgstrata does not track changes any more: the page map is full"),
				 errhint("Raise pgstrata.map_size and restart the server. Incremental backups will compare pages until then.")));
	else if (!told_nearly && !shared->overflow &&
			 used * 100 >= (uint64) map.arena_pages * NEARLY_FULL_PERCENT)
		ereport(LOG,
				(errmsg("pgstrata: %d %% of the page map are in use", (int) (used * 100 / map.arena_pages)),
				 errhint("Raise pgstrata.map_size before it is full.")));
	told_full = shared->overflow;
	told_nearly = used * 100 >= (uint64) map.arena_pages *
		(told_nearly ? NEARLY_FULL_PERCENT - 5 : NEARLY_FULL_PERCENT);
}

void
pgstrata_worker_main(Datum arg)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();

	activity_begin();
	take_up_work();
	while (!ShutdownRequestPending)
	{
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		check_settings();
		if (map_is_refused())
			remove_refused_map();
		else if (enableFsync)
			record_checkpoint();
		watch_room();
		activity_show_tracking();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 WORKER_NAP_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}

	/* 0 would mean that it is never started again, whoever asked it to go */
	proc_exit(1);
}

/* ------------------------------------------------------------------------
 * Stop
 * ------------------------------------------------------------------------
 */

/* Has the map been bound to another control file than this one? */
static bool
is_bound_elsewhere(FileIdentity file, pg_crc32c crc)
{
	const MapHeader *header = map.header;

	return header->control.inode != 0 &&
		(header->control_crc != crc || !is_same_file(header->control, file));
}

/*
 * All buffers are written, and nobody writes any more. If the control file says
 * that the cluster was shut down, and the tracker was sound, the map is clean.
 *
 * As soon as it says so pg_checksums takes the cluster for its own, though the
 * postmaster may wait long for the archiver and for standbys: it writes pages,
 * and the control file last. The map must not be bound to that one. Until 17
 * the checkpointer has bound it before the wait. From 18 on it comes after the
 * wait as well, and only the switched checksums tell.
 */
static void
save_if_shut_down(void)
{
	ControlFileData control;
	FileIdentity file;

	if (lifecycle_refusal() != NULL || map.shared->compacting)
		return;
	if (!mapfile_read_control(&control) || !is_shut_down(&control) ||
		control.data_checksum_version != loaded.data_checksum_version)
		return;

	/* if it is written in between, the two do not fit together */
	file = file_identity(XLOG_CONTROL_FILE);
	if (is_bound_elsewhere(file, control.crc))
		return;
	map.header->redo[0] = control.checkPointCopy.redo;
	map.header->control_crc = control.crc;
	map.header->control = file;
	(void) mapfile_save_at_exit(true);
}

/*
 * The start got nowhere: pg_control is as it was when the map was loaded, so
 * nobody wrote any page. The map is what it was, of a postmaster.opts that may
 * be new.
 */
static void
save_as_loaded(void)
{
	ControlFileData control;

	if (!mapfile_read_control(&control) || control.crc != loaded.control_crc ||
		!is_same_file(loaded.control, file_identity(XLOG_CONTROL_FILE)))
		return;
	map.header->opts = file_identity(POSTMASTER_OPTS);
	map.header->control = loaded.control;
	map.header->control_crc = loaded.control_crc;
	(void) mapfile_save_at_exit(loaded.clean);
}

/* All children are gone. */
static void
postmaster_exits(int code, Datum arg)
{
	if (MyProcPid != PostmasterPid || map.shared == NULL || map.lock == NULL)
		return;
	if (lifecycle_is_starting())
		save_as_loaded();
	else
		save_if_shut_down();
}

/*
 * The checkpointer exits, after the last checkpoint. The postmaster may have
 * to wait long for the archiver and for standbys, and be killed meanwhile.
 */
static void
checkpointer_exits(int code, Datum arg)
{
	if (code != 0)
		return;
	LWLockAcquire(map.lock, LW_EXCLUSIVE);
	save_if_shut_down();
	LWLockRelease(map.lock);
}

/* A process makes a checkpoint. */
void
lifecycle_in_checkpoint(void)
{
	static bool registered = false;

	if (registered || !AmCheckpointerProcess())
		return;
	registered = true;
	before_shmem_exit(checkpointer_exits, 0);
}
