/*-------------------------------------------------------------------------
 *
 * pgstrata.c
 *	  The page tracker's settings, and what happens when it is loaded.
 *
 * Tracking needs the library in shared_preload_libraries. Loaded later, by a
 * call of one of its functions, it can only say that it does not track.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "pgstrata.h"
#include "utils/guc.h"

PG_MODULE_MAGIC;

/* Enough for 1 TB that changes; costs nothing where nothing does. */
#define DEFAULT_MAP_SIZE	256
#define MAX_MAP_SIZE		65536

int			pgstrata_map_size = DEFAULT_MAP_SIZE;

void		_PG_init(void);

void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;
	DefineCustomIntVariable("pgstrata.map_size",
							"Sets the capacity of the map of changed pages.",
							"256 MB suffice for each TB that changes. 0 turns the tracker off.",
							&pgstrata_map_size, DEFAULT_MAP_SIZE, 0, MAX_MAP_SIZE,
							PGC_POSTMASTER, GUC_UNIT_MB, NULL, NULL, NULL);
	MarkGUCPrefixReserved("pgstrata");
	ptrack_define_settings();
	lifecycle_start();
}
