/*
 * lineage.pml
 *	  A model of the lineage of a data directory, for spin: what makes a layer
 *	  a parent that is stood upon without comparing pages (docs/adr/0018).
 *
 * The claim: whatever happens to directories in whatever order, a layer that is
 * listed in a lineage file which is believed lies in the directory's past.
 *
 * Modelled are a server's directory and one that is made of its files: a copy
 * with other inodes (or one of them the same), a clone of the storage, a
 * standby, whose backups go to the same repository. A backup is four steps, and
 * everything else may come between them: it makes a token, copies and stops,
 * writes the lineage file, commits. The state of the first directory may be
 * kept at any time, and come back as a whole, with its machine, or as files
 * that are copied over newer ones. Layers are restored in place, and expire.
 *
 * Of a directory's contents the model has the set of the layers that lie in its
 * past, and nothing else. That a tracker which knows a token knows the changes
 * since then is the claim of tracker.pml; here its map is only what says whether
 * the token is known: bound to the control file, or with -DCREDULOUS to nothing.
 *
 * Layers, tokens, runs (lives) of a server, inodes and states of the control
 * file are numbers that are used once. Sets are bit masks. "check" in ext/model
 * runs spin over the model as it is, and over variants that each leave out one
 * rule, which must be found wrong.
 *
 * Not modelled: files that come back without the map that lay beside them (with
 * -DMAP_STAYS they do), merged layers, changes of data_checksum_version, the doubts that
 * arise from timelines and LSNs; those only make fewer layers parents.
 */

#ifndef EVENTS
#define EVENTS		3
#endif
#ifndef LAYERS
#define LAYERS		2
#endif
#define NONE		0

#ifdef NO_FSYNC
#define FSYNC		0
#else
#define FSYNC		1
#endif

#define bit_of(n)	(1 << (n))

/* The file that lists layers. */
typedef Lineage
{
	bit exists;
	byte list, top, file, life, boot, token;
}

typedef Directory
{
	byte top, file;				/* inodes: of itself, of its control file */
	byte control;				/* which state that file has */
	byte past;					/* layers that lie in its past: the truth */
	bit has_map;
	byte map_control;			/* the state of the control file it belongs to */
	short tokens;				/* those that the map knows */
	Lineage line;
	byte life, boot;
	bit tracks, follows, there;
}

Directory dir[2], kept, durable;
bit is_kept;

byte numbers = 4, tokens, layers, events;

/* The repository: what each layer holds in its past, and what it is called. */
byte held[3], named[3], visible;

/* Backups. */
byte step[2], first[2], mine[2];

#define copy_line(to, from) \
	to.exists = from.exists; to.list = from.list; to.top = from.top; \
	to.file = from.file; to.life = from.life; to.boot = from.boot; \
	to.token = from.token
#define copy_map(to, from) \
	to.has_map = from.has_map; to.map_control = from.map_control; \
	to.tokens = from.tokens
#define copy_data(to, from) \
	to.control = from.control; to.past = from.past
#define copy_place(to, from) \
	to.top = from.top; to.file = from.file
#define copy_server(to, from) \
	to.life = from.life; to.boot = from.boot; to.tracks = from.tracks
#define copy_all(to, from) \
	copy_data(to, from); copy_map(to, from); copy_line(to.line, from.line); \
	copy_place(to, from); copy_server(to, from)

#define next_number(into)	numbers++; into = numbers

/* ---- what is believed */
#ifdef NO_TOP
#define same_top(d)		true
#else
#define same_top(d)		(dir[d].line.top == dir[d].top)
#endif
#ifdef NO_FILE
#define same_file(d)	true
#else
#define same_file(d)	(dir[d].line.file == dir[d].file)
#endif
#ifdef NO_BOOT
#define outlives(d)		true
#else
#define outlives(d)		(FSYNC || dir[d].line.boot == dir[d].boot)
#endif
#ifdef NO_TOKEN
#define token_known(d)	dir[d].tracks
#else
#define token_known(d)	(dir[d].tracks && dir[d].line.token != NONE && \
						 (dir[d].tokens & bit_of(dir[d].line.token)))
#endif
#ifdef NO_RUN
#define not_set_back(d)	true
#else
#define not_set_back(d)	(dir[d].line.life == dir[d].life || token_known(d))
#endif
#define believed(d) \
	(dir[d].there && dir[d].line.exists && same_top(d) && same_file(d) && \
	 outlives(d) && not_set_back(d))

/* ---- the server starts, and loads the map */
#ifdef CREDULOUS
#define map_belongs(d)	true
#define may_track		true
#else
#define map_belongs(d)	(dir[d].map_control == dir[d].control)
#define may_track		FSYNC
#endif

inline start(d)
{
	next_number(dir[d].life);
	step[d] = 0; first[d] = NONE; mine[d] = 0;
	if
	:: dir[d].tracks && dir[d].has_map && map_belongs(d)
	:: dir[d].tracks && !(dir[d].has_map && map_belongs(d)) -> dir[d].tokens = 0
	:: else
	fi;
	next_number(dir[d].control);
	if
	:: dir[d].tracks -> dir[d].has_map = may_track; dir[d].map_control = dir[d].control
	:: else
	fi
}

inline make_token(d, into)
{
	if
	:: dir[d].tracks && may_track ->
		tokens++; into = tokens; dir[d].tokens = dir[d].tokens | bit_of(tokens)
	:: else -> into = NONE
	fi
}

/* What is listed when layer mine[d] lies in the past, too. */
inline write_line(d)
{
	if
	:: !believed(d) ->
#ifdef NEVER_FORGET
		skip
#else
		dir[d].line.list = 0
#endif
	:: else
	fi;
	dir[d].line.list = dir[d].line.list | bit_of(mine[d]);
	dir[d].line.exists = 1;
	dir[d].line.top = dir[d].top; dir[d].line.file = dir[d].file;
	dir[d].line.life = dir[d].life; dir[d].line.boot = dir[d].boot;
#ifdef FIRST_TOKEN
	dir[d].line.token = first[d]
#else
	make_token(d, dir[d].line.token)
#endif
}

/* The first name that no layer has; its digest is the layer's number. */
inline name_layer(l)
{
	named[l] = 1;
	if
	:: (visible & 1) && named[0] == 1 -> named[l] = 2
	:: else
	fi;
	if
	:: (visible & 2) && l > 1 && named[1] == named[l] -> named[l] = 3
	:: else
	fi
}

/* Layers that d may stand upon without comparing. */
#ifdef NO_LIST
#define stands(d, l)	true
#else
#ifdef BY_LABEL
#define listed_as(d, l, m)	((dir[d].line.list & bit_of(m)) && named[l] == named[m])
#define stands(d, l)	(listed_as(d, l, 0) || listed_as(d, l, 1) || listed_as(d, l, 2))
#else
#define stands(d, l)	(dir[d].line.list & bit_of(l))
#endif
#endif
#ifdef VACUOUS
#define right(d, l)		false
#else
#define right(d, l)		(dir[d].past & bit_of(l))
#endif
#define claim(d, l) \
	assert(!(visible & bit_of(l)) || !believed(d) || !stands(d, l) || right(d, l))

/* Another directory is made: of what, and with which inodes, is set before. */
inline open_second()
{
	dir[1].there = 1;
	dir[1].tracks = dir[0].tracks; dir[1].boot = dir[0].boot;
	start(1)
}

inline other_inodes(d)
{
#ifndef SHARED_TOP
	next_number(dir[d].top);
#endif
#ifndef SHARED_FILE
	next_number(dir[d].file);
#endif
	skip
}

#define happens	(events < EVENTS)

active proctype world()
{
	byte d;

	d_step {
		dir[0].there = 1; dir[0].top = 1; dir[0].file = 2; dir[0].life = 3;
		dir[0].control = 4; dir[0].boot = 1;
#ifdef TRACKER
		dir[0].tracks = 1; dir[0].has_map = may_track; dir[0].map_control = 4;
#endif
		copy_all(durable, dir[0])
	}
	do
	/* ---- the claim, at any time */
	:: d_step {
		d = 0;
		do
		:: d < 2 ->
			claim(d, 0); claim(d, 1); claim(d, 2);
			d++
		:: else -> break
		od;
		d = 0 }

	/* ---- who is meant */
	:: dir[1].there && step[d] == 0 -> d = 1 - d

	/* ---- a backup: nothing of it counts as an event */
	:: atomic { step[d] == 0 && layers < LAYERS -> make_token(d, first[d]); step[d] = 1 }
#ifdef WRITTEN_EARLY
	:: atomic { step[d] == 1 -> mine[d] = layers; layers++; write_line(d); step[d] = 2 }
	:: atomic { step[d] == 2 ->
#else
	:: atomic { step[d] == 1 && layers < LAYERS -> mine[d] = layers; layers++;
#endif
		dir[d].past = dir[d].past | bit_of(mine[d]);
		held[mine[d]] = dir[d].past;
		if
		:: d == 0 && dir[1].follows -> dir[1].past = dir[1].past | bit_of(mine[d])
		:: else
		fi;
#ifdef WRITTEN_EARLY
		step[d] = 3 }
#else
		step[d] = 2 }
	:: atomic { step[d] == 2 -> write_line(d); step[d] = 3 }
#endif
	:: atomic { step[d] == 3 ->
		name_layer(mine[d]);
		visible = visible | bit_of(mine[d]);
		mine[d] = 0; first[d] = NONE; step[d] = 0 }

	/* ---- the first directory's state is kept, and comes back */
	:: atomic { happens && !is_kept -> events++; is_kept = 1; copy_all(kept, dir[0]) }
#ifndef ONLY_COPIES
	:: atomic { happens && is_kept -> events++;		/* the storage is set back */
		copy_data(dir[0], kept); copy_map(dir[0], kept);
		copy_line(dir[0].line, kept.line); copy_place(dir[0], kept);
		dir[1].follows = 0; start(0) }
	:: atomic { happens && is_kept -> events++;		/* the machine is */
		copy_all(dir[0], kept);
		dir[1].follows = 0; step[0] = 0; first[0] = NONE; mine[0] = 0 }
	:: atomic { happens && is_kept -> events++;		/* files over newer ones */
		copy_data(dir[0], kept);
		if
		:: kept.has_map -> copy_map(dir[0], kept)
#ifdef MAP_STAYS
		:: kept.has_map
#endif
		:: else
		fi;
		if
		:: !dir[0].line.exists -> copy_line(dir[0].line, kept.line)
		:: kept.line.exists -> copy_line(dir[0].line, kept.line)
		:: else
		fi;
		if
		:: next_number(dir[0].file)
		:: skip
		fi;
		dir[1].follows = 0; start(0) }
#endif

	/* ---- another directory is made of the first one's files */
	:: atomic { happens && !dir[1].there -> events++;	/* a copy that took long */
		if
		:: is_kept -> copy_data(dir[1], kept)
		:: copy_data(dir[1], dir[0])
		fi;
		copy_map(dir[1], dir[0]); copy_line(dir[1].line, dir[0].line);
		copy_place(dir[1], dir[0]); other_inodes(1); open_second() }
	:: atomic { happens && !dir[1].there -> events++;	/* a standby */
		copy_all(dir[1], dir[0]); other_inodes(1); open_second();
		dir[1].follows = 1 }
	:: atomic { happens && !dir[1].there -> events++;	/* a clone */
		copy_all(dir[1], dir[0]); open_second() }
	:: atomic { happens && dir[1].follows -> events++;	/* the standby is promoted */
		dir[1].follows = 0 }

#ifndef ONLY_COPIES
	/* ---- a layer is restored in place */
	:: atomic { happens && step[d] == 0 && visible -> events++;
		if
		:: (visible & 1) -> dir[d].past = held[0]
		:: (visible & 2) -> dir[d].past = held[1]
		:: (visible & 4) -> dir[d].past = held[2]
		fi;
		next_number(dir[d].control);
#ifndef RESTORE_KEEPS
		next_number(dir[d].file);
		dir[d].has_map = 0;
		dir[d].line.exists = 1; dir[d].line.list = 0; dir[d].line.life = NONE;
		dir[d].line.token = NONE; dir[d].line.boot = dir[d].boot;
		dir[d].line.top = dir[d].top; dir[d].line.file = dir[d].file;
#endif
		dir[1].follows = 0; start(d) }

	/* ---- servers and machines are started anew */
	:: atomic { happens -> events++;
		next_number(dir[d].control);
		if
		:: dir[d].tracks -> dir[d].map_control = dir[d].control
		:: else
		fi;
#ifdef TRACKER
		if
		:: dir[d].tracks = 1
		:: dir[d].tracks = 0
		fi;
#endif
		start(d) }
#endif
#if !defined(ONLY_COPIES) || defined(NO_FSYNC)
	:: atomic { happens && d == 0 -> events++;
		next_number(dir[0].boot);
		if
		:: !FSYNC -> copy_data(dir[0], durable)	/* we sync our own file */
		:: else
		fi;
		dir[1].follows = 0; start(0);
		copy_all(durable, dir[0]) }
#endif

	/* ---- a layer expires; its name may be used again */
	:: atomic { happens && visible -> events++;
		if
		:: (visible & 1) -> visible = visible & 6
		:: (visible & 2) -> visible = visible & 5
		:: (visible & 4) -> visible = visible & 3
		fi }
	od
}
