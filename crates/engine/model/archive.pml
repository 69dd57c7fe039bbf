/*
 * archive.pml
 *	  A model of one archive and two servers of one timeline, for spin: whether
 *	  recovery can go from the WAL of one into that of the other without a word
 *	  (docs/adr/0029).
 *
 * The claim: when recovery from a layer, along all WAL that the archive has
 * behind it, comes to a segment that was not written behind the one before,
 * then a restore that names no layer asks.
 *
 * The second server is a copy that goes on along the timeline, and archives to
 * the same repository, or not at all. The first one's storage may be set back.
 * Each archives segment after segment, and never passes one that is refused. A
 * backup reads the catalog, looks at the archive, starts and stops, looks again,
 * stores its own WAL, lists the layer in the directory and commits; everything
 * else may come between these. Layers expire in any order, but for those without
 * which no restore from one before them would ask.
 *
 * Contents of segments are numbers that are used once, and of each the model
 * knows behind which one it was written: that is the truth. What makes a
 * directory's list of layers believable is the claim of lineage.pml; here a copy
 * knows that its list was written in another directory.
 *
 * The claim needs what no rule enforces, and each of these can be left out:
 * what lies before a backup's own WAL is archived when that is stored, as far as
 * the archive takes it (BEHIND); nobody archives between a backup's last look
 * and its own WAL (OVERTAKEN); what is not archived keeps its mark (UNMARKED),
 * and archiving is neither turned on nor off (SWITCHED); a backup that has stored
 * its own WAL commits (UNCOMMITTED); copies are made when there is a layer
 * (BEFORE_THE_FIRST).
 *
 * Not modelled: partial segments, files that are damaged, more than one
 * repository, promotions (whoever begins a timeline leaves this one), and a
 * layer that is named by hand, which settles what lies before it. Recovery is
 * taken to notice nothing: mostly it finds that a record does not follow the one
 * before.
 */

#ifndef EVENTS
#define EVENTS		2
#endif
#ifndef LAYERS
#define LAYERS		2
#endif
#define SEGMENTS	4
#define NONE		0
#define MOST		24

#define bit_of(n)	(1 << (n))

typedef Server
{
	bit there;
	bit archives;				/* segments that are finished are marked */
	byte wal[SEGMENTS];			/* its history: contents of what it has finished */
	byte at;					/* the segment that is being written */
	byte next;					/* the segment that the archiver takes next */
	byte marks;					/* labels of backups that wait for the archiver */
	bit has_list;				/* of the layers in its past */
	bit foreign;				/* written in another directory */
	byte list;
}

Server server[2], kept;
bit is_kept;

/* Behind which contents each was written. */
byte before[MOST], contents, events, layers;

/* The repository. */
byte archive[SEGMENTS], visible;
byte begins[LAYERS], own[LAYERS];	/* a layer's own WAL: one segment, and what it holds */
bit beside[LAYERS];					/* not known to come after the newest layer */
bit noted[LAYERS];					/* an archiver brought the label of its backup */

/* Backups. */
byte step[2], seen[2], mine[2];

#define copy_server(to, from) \
	to.archives = from.archives; to.at = from.at; to.next = from.next; to.marks = from.marks; \
	to.has_list = from.has_list; to.foreign = from.foreign; to.list = from.list; \
	to.wal[0] = from.wal[0]; to.wal[1] = from.wal[1]; \
	to.wal[2] = from.wal[2]; to.wal[3] = from.wal[3]

/* ---- WAL */
inline finish_segment(d)
{
	contents++;
	if
	:: server[d].at > 0 -> before[contents] = server[d].wal[server[d].at - 1]
	:: else -> before[contents] = NONE
	fi;
	server[d].wal[server[d].at] = contents;
	server[d].at++;
	if
	:: !server[d].archives -> server[d].next = server[d].at
	:: else
	fi
}

/* The archive takes a name once. */
#define takes(d, n)		(archive[n] == NONE || archive[n] == server[d].wal[n])

/* What waits is of another history, as far as its oldest and its newest tell. */
#ifdef NO_WAITING
#define waits_in_vain(d)	false
#else
#define waits_in_vain(d)	(server[d].next < server[d].at && \
	(!takes(d, server[d].next) || !takes(d, server[d].at - 1)))
#endif
/* Early word of a backup that could not store its own WAL. */
#define is_ahead(d)		(archive[server[d].at] != NONE)

/* What lies before a backup's own WAL is archived, as far as the archive takes it. */
#ifdef BEHIND
#define keeps_up(d)		true
#else
#define keeps_up(d)		(server[d].next >= begins[mine[d]] || !takes(d, server[d].next))
#endif

/* ---- layers */
#define is_visible(l)	(visible & bit_of(l))

/* The number behind that of the newest layer which a backup has seen. */
inline find_newest(d, into)
{
	into = LAYERS;
	do
	:: into > 0 && !(seen[d] & bit_of(into - 1)) -> into--
	:: else -> break
	od
}

/* A backup label of a segment was archived, or nobody's backup began there. */
#define told_of(m, n)	(!is_visible(m) || begins[m] != n || noted[m])
#if LAYERS == 2
#define is_noted_at(n)	(told_of(0, n) && told_of(1, n))
#else
#define is_noted_at(n)	(told_of(0, n) && told_of(1, n) && told_of(2, n))
#endif

/* An archiver has brought the layer's own WAL, and gone on. */
#ifdef TAKEN_FOR_ARCHIVED
#define was_archived(m)		true
#else
#ifdef NO_LABELS
#define went_on(m)			true
#else
#define went_on(m)			(noted[m] && is_noted_at(begins[m] + 1))
#endif
#define was_archived(m)		(begins[m] + 1 < SEGMENTS && archive[begins[m] + 1] != NONE && went_on(m))
#endif

/* A restore from layer l that comes to segment n asks because of layer m. */
#define asks_for(l, m, n) \
	(is_visible(m) && beside[m] && begins[l] < begins[m] && begins[m] <= n && !was_archived(m))
#ifdef VACUOUS
#define asks(l, n)	false
#else
#if LAYERS == 2
#define asks(l, n)	(asks_for(l, 0, n) || asks_for(l, 1, n))
#else
#define asks(l, n)	(asks_for(l, 0, n) || asks_for(l, 1, n) || asks_for(l, 2, n))
#endif
#endif

/* Layer m stays: without it no restore from one before it would ask. What is missing between them may still come. */
#ifdef NO_WITNESS
#define is_witness(m)	false
#else
#define is_before(l, m)	(is_visible(l) && begins[l] < begins[m])
#if LAYERS == 2
#define is_led_to(m)	(is_before(0, m) || is_before(1, m))
#else
#define is_led_to(m)	(is_before(0, m) || is_before(1, m) || is_before(2, m))
#endif
#define is_witness(m)	(beside[m] && !was_archived(m) && is_led_to(m))
#endif
#define may_expire(m)	(is_visible(m) && !is_witness(m))

inline claim(l)
{
	if
	:: is_visible(l) ->
		last = own[l];
		n = begins[l] + 1;
		do
		:: n < SEGMENTS && archive[n] != NONE && before[archive[n]] == last ->
			last = archive[n];
			n++
		:: else -> break
		od;
		assert(n >= SEGMENTS || archive[n] == NONE || asks(l, n));
		last = 0; n = 0
	:: else
	fi
}

#define happens		(events < EVENTS)

active proctype world()
{
	byte d, l, n, last;

	atomic {
		server[0].there = 1;
		server[0].archives = 1;
#ifndef BEFORE_THE_FIRST
		/* one layer is there, and its WAL */
		finish_segment(0);
		archive[0] = contents; server[0].next = 1;
		own[0] = contents; noted[0] = 1;
		server[0].has_list = 1; server[0].list = 1;
		layers = 1; visible = 1
#endif
	}
	do
	/* ---- the claim */
#ifdef UNCOMMITTED
#define may_be_claimed		true
#else
#define may_be_claimed		(step[0] != 5 && step[1] != 5)
#endif
	:: d_step { may_be_claimed ->
		l = 0;
		do
		:: l < LAYERS -> claim(l); l++
		:: else -> break
		od;
		l = 0 }

	/* ---- who is meant */
	:: server[1].there -> d = 1 - d

	/* ---- the server finishes a segment; nothing of what follows is an event */
	:: atomic { server[d].at < SEGMENTS && step[d] != 2 -> finish_segment(d) }

	/* ---- its archiver */
	:: atomic { server[d].next < server[d].at && takes(d, server[d].next) ->
		archive[server[d].next] = server[d].wal[server[d].next];
		server[d].next++ }
	:: atomic { server[d].marks != 0 ->
		l = 0;
		do
		:: l < LAYERS && (server[d].marks & bit_of(l)) && server[d].next > begins[l] ->
			noted[l] = 1;
			server[d].marks = server[d].marks & ~bit_of(l);
			l++
		:: l < LAYERS && !((server[d].marks & bit_of(l)) && server[d].next > begins[l]) -> l++
		:: l >= LAYERS -> break
		od;
		l = 0 }

	/* ---- a backup */
	:: atomic { step[d] == 0 && layers < LAYERS -> seen[d] = visible; step[d] = 1 }
	:: atomic { step[d] == 1 ->
		if
		:: server[d].at < SEGMENTS && layers < LAYERS && !waits_in_vain(d) && !is_ahead(d) ->
			mine[d] = layers; layers++;
			begins[mine[d]] = server[d].at;
			find_newest(d, l);
			beside[mine[d]] = (l > 0 && server[d].has_list &&
				(server[d].foreign || !(server[d].list & bit_of(l - 1))));
			step[d] = 2
		:: else -> seen[d] = 0; step[d] = 0
		fi;
		l = 0 }
	:: atomic { step[d] == 2 ->				/* it stops, and finishes its segment */
		finish_segment(d);
		own[mine[d]] = server[d].wal[begins[mine[d]]];
		if
		:: server[d].archives -> server[d].marks = server[d].marks | bit_of(mine[d])
		:: else
		fi;
#ifdef OVERTAKEN
		step[d] = 3 }
	:: atomic { step[d] == 3 && !waits_in_vain(d) -> step[d] = 4 }
#define looks_well(d)	true
#else
		step[d] = 4 }
#define looks_well(d)	(!waits_in_vain(d))
#endif
	:: atomic { step[d] == 4 && keeps_up(d) ->	/* it looks again, and stores its own WAL */
		if
		:: takes(d, begins[mine[d]]) && looks_well(d) ->
			archive[begins[mine[d]]] = own[mine[d]];
			if							/* its directory lists it */
			:: server[d].foreign -> server[d].list = 0
			:: else
			fi;
			server[d].foreign = 0; server[d].has_list = 1;
			server[d].list = server[d].list | bit_of(mine[d]);
			step[d] = 5
		:: else -> seen[d] = 0; mine[d] = 0; step[d] = 0
		fi }
	:: atomic { step[d] == 5 ->
		visible = visible | bit_of(mine[d]);
		seen[d] = 0; mine[d] = 0; step[d] = 0 }

	/* ---- the first server's storage is kept, and set back */
#ifdef BEFORE_THE_FIRST
#define may_be_copied(s)	true
#else
#define may_be_copied(s)	(s.has_list)
#endif
	:: atomic { happens && !is_kept && may_be_copied(server[0]) -> events++;
		is_kept = 1; copy_server(kept, server[0]) }
	:: atomic { happens && is_kept -> events++;
		copy_server(server[0], kept);
		step[0] = 0; seen[0] = 0; mine[0] = 0 }

	/* ---- a copy goes on; one that was made with pg_basebackup has no marks */
#ifdef UNMARKED
#define may_lose_marks(s)	true
#else
#define may_lose_marks(s)	(s.next == s.at)
#endif
	:: atomic { happens && !server[1].there && may_be_copied(server[0]) -> events++;
		if
		:: copy_server(server[1], server[0])
		:: is_kept -> copy_server(server[1], kept)
		fi;
		server[1].there = 1; server[1].foreign = 1;
		if
		:: skip
		:: may_lose_marks(server[1]) -> server[1].next = server[1].at; server[1].marks = 0
#ifdef NO_ARCHIVER
		:: server[1].archives = 0; server[1].next = server[1].at; server[1].marks = 0
#endif
		fi }

#ifdef SWITCHED
	/* ---- archiving is turned on or off: what is finished meanwhile is never marked */
	:: atomic { happens -> events++;
		server[d].archives = !server[d].archives;
		server[d].next = server[d].at; server[d].marks = 0 }
#endif

	/* ---- a layer expires */
	:: atomic { happens && may_expire(0) -> events++; visible = visible & ~bit_of(0) }
	:: atomic { happens && may_expire(1) -> events++; visible = visible & ~bit_of(1) }
#if LAYERS == 3
	:: atomic { happens && may_expire(2) -> events++; visible = visible & ~bit_of(2) }
#endif
	od
}
