/*-------------------------------------------------------------------------
 *
 * report.h
 *	  Reading changed blocks out of the map.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGSTRATA_REPORT_H
#define PGSTRATA_REPORT_H

#include "map.h"

#define SEGMENT_BITMAP_BYTES	(RELSEG_SIZE / 8)

/* One row of what changed. What it says is in functions.c and TRACKER.md. */
typedef struct ReportRow
{
	char		path[MAXPGPATH];	/* empty: every relation */
	ForkNumber	fork;			/* InvalidForkNumber: every file of a directory */
	bool		whole;			/* else one segment's blocks: */
	uint32		segment;
	uint32		block_count;
	uint32		bitmap_bytes;	/* up to the last set bit */
	uint8		bitmap[SEGMENT_BITMAP_BYTES];
} ReportRow;

typedef struct Report Report;

extern Report *report_begin(uint32 since);
extern bool report_next(Report *report, ReportRow *row);

/* A file of a relation as it lies in the data directory. */
typedef struct RelationFile
{
	char		path[MAXPGPATH];
	Oid			spc;
	Oid			db;
	bool		replaced;		/* with all files of its database, just now (P5) */
	uint32		rel;
	ForkNumber	fork;
	uint32		segment;
	uint32		block_count;
} RelationFile;

typedef void (*RelationFileVisitor) (const RelationFile *file, void *context);

extern void report_visit_files(RelationFileVisitor visit, void *context);
extern void report_file(const RelationFile *file, uint32 since, ReportRow *row);

#endif							/* PGSTRATA_REPORT_H */
