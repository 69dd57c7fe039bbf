/*
 * copy.pml
 *	  A model of rule P5 for databases whose files are copied past the storage
 *	  layer, for spin: CREATE DATABASE, and ALTER DATABASE SET TABLESPACE.
 *
 * The claim: a child backup takes no file of such a database from its parent
 * that is not as the child needs it.
 *
 * Modelled is one file. A database that had its name is dropped, and another
 * copied into its place; what recovery repeats of that depends on where the
 * record of the copy lies. Between the record and the commit the statement
 * waits for a checkpoint, so that a backup may begin there. A parent and a child
 * backup, a checkpoint, and a crash of the server after the commit come
 * whenever they like. Before the commit a crash leaves a directory that no
 * database has.
 *
 * "check" runs spin over the model as it is, and over variants: nobody looks
 * who has locked the database, so that it is stamped at the commit only, or
 * before the copy as well; it is stamped before the copy and not after;
 * stamps are read before the locks; or the commit does not wait for the map's
 * file.
 */

/* What the file is. */
#define OLD		0				/* the dropped database's */
#define GONE	1
#define HALF	2
#define WHOLE	3

byte disk = OLD;
byte generation = 1, stamp, stamp_in_file;
bit locked, recorded, committed, redo_is_later;
bit checkpoint_runs;

byte parent_token, parent_file = GONE;
bit parent_runs, parent_ended;

bit child_runs, child_ended, child_replays, told;

inline put_stamp(read)
{
	read = generation;
	atomic {
		if
		:: stamp < read -> stamp = read
		:: else
		fi
	}
}

active proctype copier()
{
	byte read;

	atomic { disk = GONE; stamp = 0 }
	locked = 1;
#ifdef STAMP_FIRST
	put_stamp(read);
#endif
	disk = HALF;
	disk = WHOLE;
	recorded = 1;
#ifndef STAMP_FIRST_ALONE
	put_stamp(read);
#endif
#ifndef NO_FLUSH
	stamp_in_file = stamp;
#endif
	committed = 1;
	locked = 0
}

/* Its flush has all stamps from before the checkpoint's redo pointer. */
active proctype checkpointer()
{
	bit later;

	do
	:: atomic { !child_runs -> later = recorded; checkpoint_runs = 1 }
		stamp_in_file = stamp;
		atomic { redo_is_later = later; checkpoint_runs = 0; later = 0 }
	:: child_runs -> break
	od
}

active proctype server()
{
	/* if it crashes; recovery stamps at the record */
end_server:
	atomic { committed && !locked && !checkpoint_runs && !parent_runs && !child_runs ->
		stamp = stamp_in_file;
		if
		:: !redo_is_later -> stamp = generation
		:: else
		fi }
}

active proctype parent()
{
	atomic { generation++; parent_token = generation; parent_runs = 1 }
	parent_file = disk;
	atomic { parent_ended = 1; parent_runs = 0 }
}

active proctype child()
{
	bit is_locked, is_stamped;

	atomic { parent_ended && !checkpoint_runs -> child_runs = 1; child_replays = !recorded }
#ifdef STAMPS_FIRST
	is_stamped = (stamp >= parent_token);
#endif
#ifndef NO_LOOK
	is_locked = locked;
#endif
#ifndef STAMPS_FIRST
	is_stamped = (stamp >= parent_token);
#endif
	atomic { told = is_locked || is_stamped; child_ended = 1 }
}

active proctype reader()
{
	/* when all that may happen has */
	timeout ->
#ifdef VACUOUS
		assert(told || child_replays);
#endif
		assert(!committed || told || child_replays || parent_file == WHOLE)
}
