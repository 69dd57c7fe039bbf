/*
 * tracker.pml
 *	  A model of the page tracker's protocol, for spin.
 *
 * The claim: whatever crashes when, a page that the tracker calls unchanged
 * since a token is, in the parent backup that made the token, as the child
 * backup needs it; or the token is unknown.
 *
 * Modelled are one page, written from the buffers or, with -DBULK, once past
 * them (an index build); the WAL with and without full page images; sessions,
 * a checkpointer, the tracker's worker, a parent and a child backup; the map
 * in memory, in the operating system's cache and on the disk; a flush that
 * fails; and three kinds of crash: of a child (the map's memory stays), of the
 * server (what was written stays), of the machine (any part of what was not
 * synced is lost). A crash may come between any two steps, and in recovery.
 *
 * With -DSTOPS=n the server also stops and starts n times. It may be killed when
 * its control file says that it was shut down and the map is not saved yet; and
 * while it is down, others may change the page if the control file allows it
 * (pg_checksums), or begin to write and leave it as after a crash (a session
 * without the library). With -DDAMAGE somebody spoils the map's file meanwhile.
 *
 * An LSN is the number of a WAL record; the page is the number of the record
 * that last changed it. So "disk == 3" is the page after record 3, and a
 * checkpoint whose redo is 2 is recovered from record 3 on.
 *
 * Each participant is a program counter, and each step one option of the loop
 * at the end: all interleavings are searched. "check" runs spin over the model
 * as it is, and over variants that each leave out one rule of the protocol
 * (protocol.c names them P1 to P7), which must be found wrong.
 *
 * Not modelled: files that come and go (P3; P5 is in drop.pml and copy.pml), the
 * map's directory (test/faults_memory.c), more than one token, the generations'
 * compaction, weak memory order.
 */

#ifndef CRASHES
#define CRASHES		2
#endif
#ifndef RECORDS
#define RECORDS		3
#endif
#define GENERATIONS	3
#define NONE		15

/* A last checkpoint's redo pointer is its own record's, which no other has. */
#define LAST		(RECORDS + 1)

/* What crashes leave alone: the WAL up to wal_durable, and pg_control. */
byte wal_end, wal_durable, control_redo;
bit with_image[RECORDS + 1];

/* The page in the operating system's cache, and on the disk. */
byte disk, durable;

/* The map in memory. */
byte generation = 1, cell, token, redo_0, redo_1;
bit dirty;

/*
 * The map file in the cache: what the header counts, and what a flush has
 * appended, which may be on the disk yet or not ...
 */
byte file_cell, file_generation = 1, file_token, file_redo_0, file_redo_1;
bit file_exists = 1;
byte tail_cell;
bit tail_synced = 1;

/* ... and on the disk. */
byte synced_cell, synced_generation = 1, synced_token, synced_redo_0, synced_redo_1;

/* The header counts something that is not as it was written. */
bit damaged;

#ifdef STOPS
/* The control file says "shut down"; it is as the last clean map knows it. */
bit control_shut, control_kept;
bit file_clean, synced_clean;

byte stops;
bit last_checkpoint, saved;

/* Others changed the page since the parent copied it. */
bit changed_offline;
#endif

/* The server: its life, its buffer, the redo pointer in its memory. */
#define RUNNING		0
#define REPLAYING	1
#define ENDING		2			/* replay is done, its checkpoint is not */
#define STOPPING	3			/* nobody works but the checkpointer */
#define STOPPED		4
byte life = RUNNING, replay, redo;
bit in_buffer, buffer_dirty, full_page_writes, to_sync;
byte buffer;
byte crashes;
bit failed;

/* Program counters and what belongs to them. */
byte writer, writer_generation;
byte checkpoint, checkpoint_redo;
bit checkpoint_waits;
byte flush, flush_redo, flush_control;
byte bulk, bulk_generation;
bit committed;
byte backup;
bit backup_runs;

/* What the parent backup copied, and what its child must have. */
byte parent_token, parent_page;
byte child_page;

#define IDLE		0
#define DONE		10
#define MAX(a, b)	((a) > (b) -> (a) : (b))
#define MIN(a, b)	((a) < (b) -> (a) : (b))

/* The backup's steps. */
#define BEFORE			0
#define FLUSH_TOKEN		1
#define WAIT_CHECKPOINT	2
#define IN_CHECKPOINT	3
#define COPY	4
#define PARENT_ENDED	6
#define CHILD_WAITS		7
#define CHILD_STARTS	8
#define CHILD_READS		9

inline raise(to)
{
	if
	:: cell < to -> cell = to; dirty = 1
	:: else
	fi
}

inline start_flush(with_redo)
{
	flush_redo = with_redo;
#ifndef READ_CONTROL_LATE
	flush_control = control_redo;
#endif
	flush = 1
}

/* A new file in the old one's place. */
inline save_all()
{
	file_cell = cell;
	file_generation = generation; file_token = token;
	file_redo_0 = redo_0; file_redo_1 = redo_1;
	file_exists = 1; dirty = 0; damaged = 0; tail_cell = cell;
#ifdef STOPS
	file_clean = 0;
#endif
	sync_all()
}

inline sync_tail()
{
	tail_synced = 1
}

inline sync_all()
{
	tail_synced = 1;
	synced_cell = file_cell;
	synced_generation = file_generation; synced_token = file_token;
	synced_redo_0 = file_redo_0; synced_redo_1 = file_redo_1;
#ifdef STOPS
	synced_clean = file_clean
#endif
}

/* P6: is the map in the file to be believed? */
#ifdef NO_P6
#define on_record	true
#else
#define on_record	(control_redo == file_redo_0 || control_redo == file_redo_1)
#endif
#ifdef NO_CHECKS
#define is_whole	true
#else
#define is_whole	(!damaged)
#endif
#ifndef STOPS
#define is_left_alone	true
#define is_recorded		on_record
#else
#ifdef STATE_IS_NO_MATTER
#define is_left_alone	(!file_clean || (control_shut && control_kept))
#else
#define is_left_alone	(control_shut == file_clean && \
						 (!file_clean || control_kept))
#endif
#define is_recorded		(file_clean || on_record)
#endif

/* While the server is down. */
inline others_come()
{
#ifdef STOPS
	if
	:: control_shut ->
		changed_offline = 1; control_kept = 0;
		if
		:: control_shut = 0
		:: skip
		fi
	:: skip
	fi;
#endif
#ifdef DAMAGE
	if
	:: file_exists -> file_cell = 0; damaged = 1
	:: skip
	fi;
#endif
	skip
}

inline load_map()
{
	others_come();
	if
	:: file_exists && is_whole && is_left_alone && is_recorded ->
		cell = MIN(file_cell, file_generation);
		generation = file_generation; token = file_token
	:: else ->
		cell = 0; token = 0
	fi;
	redo_0 = control_redo; redo_1 = control_redo;
	save_all();
#ifdef STOPS
	if
	:: control_shut -> control_shut = 0; control_kept = 0; life = RUNNING; replay = 0
	:: else
	fi;
#endif
	if
	:: backup == PARENT_ENDED && token != parent_token -> backup = DONE
	:: else
	fi
}

/* The machine stops: of each thing not yet synced, old or new is left. */
inline lose_unsynced()
{
	if :: disk = durable :: skip fi;
	if
	:: file_generation = synced_generation; file_token = synced_token;
		file_redo_0 = synced_redo_0; file_redo_1 = synced_redo_1;
#ifdef STOPS
		file_clean = synced_clean;
#endif
		file_cell = synced_cell
	:: !tail_synced -> file_cell = synced_cell; damaged = 1
	:: skip
	fi;
	durable = disk;
	sync_all()
}

/* All processes are gone; recovery starts from pg_control's checkpoint. */
inline begin_recovery()
{
	wal_end = wal_durable;
	redo = control_redo % LAST; replay = redo + 1; life = REPLAYING;
	in_buffer = 0; buffer = 0; buffer_dirty = 0; to_sync = 0;
	writer = IDLE; writer_generation = 0; checkpoint = IDLE; checkpoint_redo = 0;
	checkpoint_waits = 0; flush = IDLE; flush_redo = 0; flush_control = 0;
	bulk_generation = 0; backup_runs = 0; tail_cell = file_cell;
#ifdef STOPS
	last_checkpoint = 0; saved = 0;
#endif
	if
	:: bulk > IDLE && bulk < DONE -> bulk = DONE	/* rolled back: its file is of no use */
	:: else
	fi;
	child_page = 0;
	if
	:: backup < PARENT_ENDED -> backup = BEFORE; parent_token = 0; parent_page = 0
	:: backup > PARENT_ENDED -> backup = PARENT_ENDED
	:: else
	fi
}

inline checkpoint_finished()
{
	control_redo = checkpoint_redo;
#ifdef STOPS
	control_kept = 0;
	if
	:: last_checkpoint -> control_shut = 1; life = STOPPED
	:: else
	fi;
#endif
	if
	:: life == ENDING -> life = RUNNING
	:: else
	fi;
	if
	:: backup == IN_CHECKPOINT -> backup = COPY
	:: backup == CHILD_STARTS -> backup = CHILD_READS
	:: else
	fi
}

/* What a checkpoint with this redo pointer vouches for. */
#ifdef BULK
#define BULK_LSN		1
#define page_at_redo	(committed -> BULK_LSN : 0)
#else
#define page_at_redo	redo
#endif

#define is_running		(life == RUNNING && backup < DONE)
#define may_crash		(crashes < CRASHES && backup < DONE)
#define may_checkpoint	(life != REPLAYING && life != STOPPED)

/* The last checkpoint of a server that stops is not put on record. */
#if defined(STOPS) && !defined(RECORD_LAST)
#define redo_to_record	(last_checkpoint -> NONE : checkpoint_redo)
#else
#define redo_to_record	checkpoint_redo
#endif

active proctype server()
{
	if
	:: full_page_writes = 1
#ifndef ONLY_WITH_IMAGES
	:: full_page_writes = 0
#endif
	fi;

	do
#ifndef BULK
	/* ---- sessions: change the page in its buffer, evict it, flush the WAL */
	:: atomic { is_running && wal_end < RECORDS && writer == IDLE ->
		if
		:: !in_buffer -> in_buffer = 1; buffer = disk
		:: else
		fi;
		wal_end++;
		with_image[wal_end] = (full_page_writes || backup_runs) && buffer <= redo;
		buffer = wal_end; buffer_dirty = 1 }
	:: atomic { in_buffer && !buffer_dirty && writer == IDLE -> in_buffer = 0; buffer = 0 }
	:: atomic { is_running && wal_durable < wal_end -> wal_durable = wal_end }

	/* ---- P1: somebody writes the buffer out */
	:: atomic { buffer_dirty && writer == IDLE && backup < DONE ->
		wal_durable = MAX(wal_durable, buffer);
		writer_generation = generation; writer = 1 }
	:: atomic { writer == 1 ->
		raise(writer_generation); writer = 2 }
	:: atomic { writer == 2 -> disk = buffer; writer = 3 }
	:: atomic { writer == 3 -> to_sync = 1; writer = 4 }
	:: atomic { writer == 4 ->
#ifndef NO_REREAD
		if
		:: generation != writer_generation -> raise(generation)
		:: else
		fi;
#endif
		buffer_dirty = 0; checkpoint_waits = 0; writer_generation = 0; writer = IDLE }

#else
	/* ---- a bulk write past the buffers: P1, its own sync, P7, commit */
	:: atomic { is_running && bulk == IDLE && wal_end == 0 ->
		wal_end = BULK_LSN; with_image[BULK_LSN] = 1; bulk = 1 }
	:: atomic { bulk == 1 -> bulk_generation = generation; bulk = 2 }
	:: atomic { bulk == 2 -> raise(bulk_generation); bulk = 3 }
	:: atomic { bulk == 3 -> disk = BULK_LSN; bulk = 4 }
	:: atomic { bulk == 4 ->
#ifndef NO_REREAD
		if
		:: generation != bulk_generation -> raise(generation)
		:: else
		fi;
#endif
		bulk_generation = 0; bulk = 5 }
	:: atomic { bulk == 5 -> durable = disk; bulk = 6 }
#ifdef NO_P7
	:: atomic { bulk == 6 -> bulk = 8 }
#else
	:: atomic { bulk == 6 && BULK_LSN <= redo && flush == IDLE -> start_flush(NONE); bulk = 7 }
	:: atomic { bulk == 6 && BULK_LSN > redo -> bulk = 8 }
	:: atomic { bulk == 7 && flush == IDLE -> bulk = 8 }
#endif
	:: atomic { bulk == 8 && backup < DONE -> wal_durable = wal_end; committed = 1; bulk = DONE }
#endif
#if defined(BULK) || defined(STOPS)
	/* ---- other files are written, now and then */
	:: atomic { life != REPLAYING && life < STOPPING && backup < DONE && !to_sync -> to_sync = 1 }
#endif

	/* ---- the checkpointer, with P2 */
	:: atomic { may_checkpoint && checkpoint == IDLE && backup < DONE ->
#ifdef STOPS
		last_checkpoint = (life == STOPPING);
#endif
		redo = wal_end; checkpoint_redo = redo;
#ifdef STOPS
		checkpoint_redo = redo + (last_checkpoint -> LAST * stops : 0);
#endif
		checkpoint_waits = buffer_dirty;
		checkpoint = 1;
		if
		:: backup == WAIT_CHECKPOINT -> backup = IN_CHECKPOINT
		:: backup == CHILD_WAITS ->
			backup = CHILD_STARTS;
			child_page = page_at_redo
		:: else
		fi }
	:: atomic { checkpoint == 1 && !checkpoint_waits && to_sync -> to_sync = 0; checkpoint = 2 }
	:: atomic { checkpoint == 1 && !checkpoint_waits && !to_sync -> checkpoint = 5 }
#ifdef FLUSH_LATE
	:: atomic { checkpoint == 2 -> durable = disk; checkpoint = 3 }
	:: atomic { checkpoint == 3 -> checkpoint_finished(); checkpoint = 4 }
	:: atomic { checkpoint == 4 && flush == IDLE -> start_flush(redo_to_record); checkpoint = 6 }
#else
	:: atomic { checkpoint == 2 && flush == IDLE -> start_flush(redo_to_record); checkpoint = 3 }
	:: atomic { checkpoint == 3 && flush == IDLE -> checkpoint = 4 }
	:: atomic { checkpoint == 4 -> durable = disk; checkpoint = 5 }
#endif
	:: atomic { checkpoint == 5 -> checkpoint_finished(); checkpoint = IDLE; checkpoint_redo = 0 }
	:: atomic { checkpoint == 6 && flush == IDLE -> checkpoint = IDLE; checkpoint_redo = 0 }

	/* ---- the worker: checkpoints that had nothing to sync */
	:: atomic { flush == IDLE && backup < DONE && life < STOPPING && redo != redo_0 && control_redo != redo_0 ->
		start_flush(control_redo) }

	/* ---- a flush of the map: append, sync, header, sync */
	:: atomic { flush == 1 && !file_exists ->
		if
		:: flush_redo != NONE -> redo_0 = flush_redo; redo_1 = flush_control
		:: else
		fi;
		save_all();
		flush = IDLE; flush_redo = 0; flush_control = 0 }
#ifdef CLEAR_LATE
	:: atomic { flush == 1 && file_exists && dirty -> tail_cell = cell; tail_synced = 0; flush = 2 }
	:: atomic { flush == 2 -> dirty = 0; flush = 5 }
#else
	:: atomic { flush == 1 && file_exists && dirty -> dirty = 0; flush = 2 }
	:: atomic { flush == 2 -> tail_cell = cell; tail_synced = 0; flush = 5 }
#endif
	:: atomic { flush == 1 && file_exists && !dirty -> flush = 5 }
#ifdef ONE_SYNC
	:: atomic { flush == 5 -> flush = 6 }
#else
	:: atomic { flush == 5 -> sync_tail(); flush = 6 }
#endif
	:: atomic { flush == 6 ->
#ifdef READ_CONTROL_LATE
		flush_control = control_redo;
#endif
		if
		:: flush_redo != NONE -> redo_0 = flush_redo; redo_1 = flush_control
		:: else
		fi;
		file_cell = tail_cell;
		file_generation = generation; file_token = token;
		file_redo_0 = redo_0; file_redo_1 = redo_1;
		flush = 7 }
	:: atomic { flush == 7 -> sync_all(); flush = IDLE; flush_redo = 0; flush_control = 0 }

	/* ---- once, a flush fails: P7 then removes the file */
#ifndef NO_FAILURE
	:: atomic { flush > IDLE && !failed && backup < DONE ->
		failed = 1; dirty = 1; redo_0 = NONE; tail_cell = file_cell;
		flush = IDLE; flush_redo = 0; flush_control = 0;
		if
		:: bulk == 7 -> file_exists = 0
		:: else
		fi }
#endif

	/* ---- the parent backup, then its child */
#ifdef BUMP_LATE
	:: atomic { is_running && backup == BEFORE && flush == IDLE -> backup_runs = 1; backup = WAIT_CHECKPOINT }
	:: atomic { is_running && backup == COPY -> parent_page = disk; backup = FLUSH_TOKEN }
	:: atomic { backup == FLUSH_TOKEN && flush == IDLE && generation < GENERATIONS ->
		generation++; token = generation; parent_token = token;
		start_flush(NONE); backup_runs = 0; backup = PARENT_ENDED }
#else
	:: atomic { is_running && backup == BEFORE && generation < GENERATIONS && flush == IDLE ->
		generation++; token = generation; parent_token = token;
		start_flush(NONE); backup = FLUSH_TOKEN }
	:: atomic { backup == FLUSH_TOKEN && flush == IDLE -> backup_runs = 1; backup = WAIT_CHECKPOINT }
	:: atomic { is_running && backup == COPY ->
#ifdef STOPS
		changed_offline = 0;
#endif
		parent_page = disk; backup_runs = 0; backup = PARENT_ENDED }
#endif
	:: atomic { is_running && backup == PARENT_ENDED -> backup_runs = 1; backup = CHILD_WAITS }
#ifdef READ_EARLY
	:: atomic { backup == CHILD_STARTS && checkpoint == 1 ->
#else
	:: atomic { backup == CHILD_READS ->
#endif
		if
		:: token == parent_token ->
#ifdef VACUOUS
			assert(crashes < CRASHES || cell >= token || parent_page == 0);
#endif
#ifdef STOPS
			assert(cell >= token || !changed_offline);
#endif
			assert(cell >= token || parent_page >= child_page)
		:: else
		fi;
		backup = DONE }
	:: backup == DONE -> break

#ifdef STOPS
	/* ---- a stop, and a start; between them the map is saved, or not */
	:: atomic { is_running && stops < STOPS && checkpoint == IDLE ->
		stops++; wal_durable = wal_end; life = STOPPING }
	:: atomic { life == STOPPED && !saved && flush == IDLE && writer == IDLE ->
		redo_0 = control_redo;
		save_all();
		file_clean = 1; control_kept = 1; saved = 1;
		sync_all() }
	:: atomic { life == STOPPED && backup < DONE ->
		begin_recovery(); load_map() }
#endif

	/* ---- crashes, and recovery, with P4; the server syncs all data files first */
	:: atomic { may_crash && life != STOPPED ->	/* of a child: the map's memory stays */
		crashes++; begin_recovery(); durable = disk; dirty = 1 }
	:: atomic { may_crash ->			/* of the server */
		crashes++; begin_recovery(); durable = disk; load_map() }
	:: atomic { may_crash ->			/* of the machine */
		crashes++; begin_recovery(); lose_unsynced(); load_map() }
	:: atomic { life == REPLAYING && replay > wal_end -> replay = 0; life = ENDING }
#ifdef BULK
	:: atomic { life == REPLAYING && replay <= wal_end ->
		raise(generation); disk = BULK_LSN; to_sync = 1; replay++ }
#else
	:: atomic { life == REPLAYING && replay <= wal_end && writer == IDLE ->
		if
		:: with_image[replay] -> in_buffer = 1; buffer = replay; buffer_dirty = 1
		:: else ->
			if
			:: in_buffer
			:: else ->
				in_buffer = 1; buffer = disk;
#ifndef NO_P4
				raise(generation)
#endif
			fi;
			if
			:: buffer < replay -> buffer = replay; buffer_dirty = 1
			:: else
			fi
		fi;
		replay++ }
#endif
	od
}
