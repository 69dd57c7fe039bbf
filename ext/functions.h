/*-------------------------------------------------------------------------
 *
 * functions.h
 *	  What the SQL functions of pgstrata and of ptrack have in common.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGSTRATA_FUNCTIONS_H
#define PGSTRATA_FUNCTIONS_H

#include "access/tupdesc.h"
#include "fmgr.h"
#include "report.h"

extern void functions_require_tracking(void);
extern void functions_require_same(uint32 before, uint32 now);
extern TupleDesc functions_row_type(FunctionCallInfo fcinfo, int columns);
extern bytea *functions_bitmap_of(const ReportRow *row);

#endif							/* PGSTRATA_FUNCTIONS_H */
