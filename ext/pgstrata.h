/*-------------------------------------------------------------------------
 *
 * pgstrata.h
 *	  What the parts of the page tracker tell each other.
 *
 * The parts, in the order in which a reader may want them:
 *
 *	pgstrata.c	  the settings, and what is wired to what at load time
 *	interpose.c	  finds the server's storage tables and puts us into them
 *	probe.c		  proves on a scratch file that the tables are used
 *	map.c		  the map in memory: directory, cells, marks
 *	mapfile.c	  the map on disk: flush, save, load
 *	history.c	  generations and tokens
 *	protocol.c	  what is marked when: the wrappers and hooks (P1 to P5, P7)
 *	lifecycle.c	  start, worker, stop: whether an old map may be trusted (P6)
 *	report.c	  reading changed blocks out of the map
 *	functions.c	  the SQL functions
 *	ptrack.c	  what tools written for ptrack ask
 *	activity.c	  the worker's row in pg_stat_activity
 *
 * The server's per-major names and types are dealt with here, in interpose.c
 * and in activity.c, nowhere else.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGSTRATA_H
#define PGSTRATA_H

#include "access/xlogdefs.h"
#include "common/relpath.h"
#include "datatype/timestamp.h"
#include "storage/block.h"
#include "storage/smgr.h"

#if PG_VERSION_NUM < 150000 || PG_VERSION_NUM >= 190000
#error "pgstrata supports PostgreSQL 15 to 18"
#endif
#ifdef EXEC_BACKEND
#error "pgstrata needs a server that forks: its memory is inherited"
#endif

#define PGSTRATA_VERSION	"1.1"

/* PostgreSQL 16 renamed relation file nodes to locators. */
#if PG_VERSION_NUM >= 160000
typedef RelFileLocatorBackend RelBackend;
typedef const void *PageBytes;
#define REL_OF(reln)		((reln)->smgr_rlocator)
#define REL_SPC(rel)		((rel).locator.spcOid)
#define REL_DB(rel)			((rel).locator.dbOid)
#define REL_NUMBER(rel)		((rel).locator.relNumber)
#else
typedef RelFileNodeBackend RelBackend;
typedef char *PageBytes;
#define REL_OF(reln)		((reln)->smgr_rnode)
#define REL_SPC(rel)		((rel).node.spcNode)
#define REL_DB(rel)			((rel).node.dbNode)
#define REL_NUMBER(rel)		((rel).node.relNode)
#endif
#define REL_IS_TEMP(rel)	((rel).backend != -1)

/* pgstrata.c */
extern int	pgstrata_map_size;

/* lifecycle.c */
extern void lifecycle_start(void);
extern void lifecycle_refuse(const char *fmt,...) pg_attribute_printf(1, 2);
extern const char *lifecycle_refusal(void);
extern bool lifecycle_is_starting(void);
extern void lifecycle_in_checkpoint(void);
extern PGDLLEXPORT void pgstrata_worker_main(Datum arg);

/* protocol.c */
extern void protocol_install_hooks(void);
extern uint64 protocol_calls(int op);
extern bool protocol_database_is_replaced(Oid db);
extern bool protocol_old_truncate_abi;
extern BlockNumber protocol_last_truncate_to;

/* probe.c */
extern bool probe_tables(void);

/* activity.c */
extern void activity_begin(void);
extern void activity_show(const char *text);
extern void activity_show_tracking(void);

/* ptrack.c */
extern void ptrack_define_settings(void);

#endif							/* PGSTRATA_H */
