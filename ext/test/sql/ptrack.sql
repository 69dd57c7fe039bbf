-- What tools written for ptrack ask, pg_probackup above all.
CREATE EXTENSION ptrack;
SELECT extversion, extnamespace::regnamespace FROM pg_extension WHERE extname = 'ptrack'::name;
SELECT ptrack_version();
SHOW ptrack.map_size;
SELECT p.oid::regprocedure AS function, pg_get_function_result(p.oid) AS result,
       has_function_privilege('public', p.oid, 'execute') AS for_all
  FROM pg_proc p WHERE proname LIKE 'ptrack%' ORDER BY p.proname;
SELECT ptrack_init_lsn() <= pg_current_wal_insert_lsn() AS known_from_before;

CREATE TABLE p (k int, filler text) WITH (autovacuum_enabled = off);
INSERT INTO p SELECT g, repeat('x', 1000) FROM generate_series(1, 70) g;
VACUUM (FREEZE) p;
CHECKPOINT;
SELECT pg_relation_filepath('p') AS path \gset

-- the question makes a token that the next one is answered from
SELECT ptrack_init_lsn() IS NOT NULL AS asked;
SELECT pg_current_wal_insert_lsn() AS lsn \gset
DELETE FROM p WHERE k = 30;
CHECKPOINT;
SELECT pagecount, pagemap FROM ptrack_get_pagemapset(:'lsn') WHERE path = :'path';
SELECT files > 0 AS files, pages >= files AS pages,
       round("size, MB" * 128) = pages AS megabytes
  FROM ptrack_get_change_stat(:'lsn');

-- nothing is known from before the history
SELECT * FROM ptrack_get_pagemapset('0/1');
SELECT files FROM ptrack_get_change_stat('0/1');

-- NULL as ptrack has it
SELECT * FROM ptrack_get_pagemapset(NULL);
SELECT * FROM ptrack_get_change_stat(NULL);

-- rights: EXECUTE on a function is enough, but for change_stat, which asks pagemapset; any schema will do
CREATE SCHEMA elsewhere;
ALTER EXTENSION ptrack SET SCHEMA elsewhere;
CREATE ROLE regress_nobody;
GRANT USAGE ON SCHEMA elsewhere TO regress_nobody;
SET ROLE regress_nobody;
SELECT elsewhere.ptrack_init_lsn();
SELECT * FROM elsewhere.ptrack_get_pagemapset('0/1');
SELECT * FROM elsewhere.ptrack_get_change_stat('0/1');
RESET ROLE;
GRANT EXECUTE ON FUNCTION elsewhere.ptrack_init_lsn(), elsewhere.ptrack_get_pagemapset(pg_lsn),
      elsewhere.ptrack_get_change_stat(pg_lsn) TO regress_nobody;
SET ROLE regress_nobody;
SELECT elsewhere.ptrack_init_lsn() IS NOT NULL AS asked;
SELECT count(*) > 0 AS some FROM elsewhere.ptrack_get_pagemapset(:'lsn');
SELECT files > 0 AS some FROM elsewhere.ptrack_get_change_stat(:'lsn');
RESET ROLE;
DROP OWNED BY regress_nobody;
DROP ROLE regress_nobody;
DROP EXTENSION ptrack;
DROP SCHEMA elsewhere;
DROP TABLE p;
