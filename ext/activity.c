/*-------------------------------------------------------------------------
 *
 * activity.c
 *	  The worker's row in pg_stat_activity.
 *
 * A worker has one by itself only when it connects to a database, for which it
 * would have to wait until recovery is consistent. Ours is at work before that.
 * So the worker takes a place among those that are shown, as auxiliary
 * processes do.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "map.h"
#include "miscadmin.h"
#include "storage/sinvaladt.h"
#include "utils/backend_status.h"

/* Called once by the worker, when it begins. */
void
activity_begin(void)
{
	/* until 16 the place goes with one for invalidations, of which it sends none and gets none */
#if PG_VERSION_NUM < 170000
	SharedInvalBackendInit(true);
#endif
	pgstat_beinit();
#if PG_VERSION_NUM >= 180000
	pgstat_bestart_initial();
#else
	InitializeSessionUserIdStandalone();
	pgstat_bestart();
#endif
	pgstat_report_appname("pgstrata tracker");
	activity_show("proving that the server's storage tables are used");
}

/*
 * What the worker knows, in the column "query". It is called idle: monitors ring
 * when something is active for days.
 */
void
activity_show(const char *text)
{
	static char shown[256];

	if (strncmp(shown, text, sizeof(shown) - 1) == 0)
		return;
	strlcpy(shown, text, sizeof(shown));
	SetCurrentStatementStartTimestamp();
	pgstat_report_activity(STATE_IDLE, text);
}

/* In every round of the worker. */
void
activity_show_tracking(void)
{
	const char *refusal = lifecycle_refusal();
	uint64		used = map.shared->pages_used - map.shared->free_count;
	char		text[256];

	if (refusal != NULL)
		snprintf(text, sizeof(text), "changes are not tracked: %s", refusal);
	else
		snprintf(text, sizeof(text), "changes are tracked, %d %% of the page map are in use",
				 (int) (used * 100 / map.arena_pages));
	activity_show(text);
}
