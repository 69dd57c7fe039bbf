/*-------------------------------------------------------------------------
 *
 * switch.c
 *	  A switch for measuring: makes the tracker look away while a server runs.
 *
 * Compiled into a private build of the extension by `pgstrata lab seed
 * tracking --toggle`. What is written meanwhile is not marked, so a server
 * that ran with this library must never be backed up by its map.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "map.h"
#include "pgstrata.h"

PG_FUNCTION_INFO_V1(pgstrata_lab_bypass);

Datum
pgstrata_lab_bypass(PG_FUNCTION_ARGS)
{
	if (map.shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the tracker has no map"),
				 errhint("Set pgstrata.map_size and restart.")));
	map.shared->bypass = PG_GETARG_BOOL(0);
	PG_RETURN_VOID();
}
