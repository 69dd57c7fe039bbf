/*
 * drop.pml
 *	  A model of rule P5 for DROP DATABASE, for spin: what is forgotten, and
 *	  when.
 *
 * The claim: a database that is there has its marks.
 *
 * Modelled are two databases by number, their names, a session that drops what
 * has the first name, one that gives the first database another name and the
 * second the first name, and one that makes a database with a number that is
 * free. The server looks a name up, waits for the lock, and looks again. "check"
 * runs spin over the model as it is, and over variants that resolve the name
 * before the lock, or forget after the commit; with those, a look at the
 * directory before each entry is forgotten is left out.
 */

#define NOBODY	2				/* no such name, no such number */

byte name_of[2] = { 0, 1 };		/* number -> name; the names are 0 and 1, and 2 */
bit exists[2] = { 1, 1 };
bit files[2] = { 1, 1 };
bit marks[2] = { 1, 1 };		/* both were written to since the token */
byte locked_by[2];				/* 0: nobody */

#define lookup(into, name) \
	if \
	:: exists[0] && name_of[0] == name -> into = 0 \
	:: exists[1] && name_of[1] == name -> into = 1 \
	:: else -> into = NOBODY \
	fi

#ifdef NO_LOOK
#define is_gone(db)		true
#else
#define is_gone(db)		(!files[db])
#endif

inline forget(db)
{
	atomic {
		if
		:: is_gone(db) -> marks[db] = 0
		:: else
		fi
	}
}

active proctype dropper()
{
	byte early, db;

	atomic { lookup(early, 0) }
again:
	atomic { lookup(db, 0) }
	if
	:: db == NOBODY -> goto over
	:: else
	fi;
	atomic { locked_by[db] == 0 -> locked_by[db] = 1 }
	atomic {
		if
		:: !exists[db] || name_of[db] != 0 -> locked_by[db] = 0; goto again
		:: else
		fi
	}
	files[db] = 0;
#ifdef BY_NAME
	if
	:: early != NOBODY -> forget(early)
	:: else
	fi;
#endif
#if !defined(BY_NAME) && !defined(AFTER_COMMIT)
	forget(db);
#endif
	atomic { exists[db] = 0; locked_by[db] = 0 }
#ifdef AFTER_COMMIT
	forget(db);
#endif
over:
	skip
}

active proctype renamer()
{
	/* in one transaction: its names are seen when it commits */
end_renamer:
	atomic { locked_by[0] == 0 && exists[0] -> locked_by[0] = 2 }
	atomic { locked_by[1] == 0 && exists[1] -> locked_by[1] = 2 }
	atomic { name_of[0] = 2; name_of[1] = 0; locked_by[0] = 0; locked_by[1] = 0 }
}

active proctype maker()
{
	byte db;

	if
	:: db = 0
	:: db = 1
	fi;
end_maker:
	atomic { !exists[db] -> exists[db] = 1; name_of[db] = 2 }
	files[db] = 1;
	marks[db] = 1
}

active proctype reader()
{
	/* when all that may happen has */
	timeout ->
		assert(!exists[0] || marks[0]);
		assert(!exists[1] || marks[1])
}
